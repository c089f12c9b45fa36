"""The edit of a script that sets switches, at the calls that were seen while it trained."""

COMMANDS = {
    "patch": ("perfkit.additions.patch.command:patch", "The edit of your own script that sets switches")
}
