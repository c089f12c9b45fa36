"""Any training script as it stands: steps are seen, switches set from outside, edits written."""

COMMANDS = {
    "watch": (
        "perfkit.additions.scripts.command:watch",
        "Where the time of your own script goes, and what to try",
    ),
    "patch": ("perfkit.additions.scripts.command:patch", "The edit of your own script that sets switches"),
}
NOTEBOOK = {"script_panel": "perfkit.additions.scripts.panel:ScriptPanel"}
