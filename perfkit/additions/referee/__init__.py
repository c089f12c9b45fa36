"""Does an edited script still train the same, and is it faster? It compares two that run as they are."""

COMMANDS = {
    "referee": (
        "perfkit.additions.referee.command:referee",
        "Is your edited script faster, and does it still train the same?",
    ),
}
