"""Any training script as it stands: steps are seen, switches set from outside, edits written."""

COMMANDS = {
    "watch": (
        "perfkit.additions.scripts.command:watch",
        "Where the time of your own script goes, and what to try",
    ),
    "referee": (
        "perfkit.additions.scripts.command:referee",
        "Is your edited script faster, and does it still train the same?",
    ),
    "patch": ("perfkit.additions.scripts.command:patch", "The edit of your own script that sets switches"),
}
NOTEBOOK = {"script_panel": "perfkit.additions.scripts.panel:ScriptPanel"}
