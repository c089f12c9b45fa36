"""Inside somebody else's training script, unmodified: its steps are seen, switches are set from outside."""

COMMANDS = {
    "watch": (
        "perfkit.scripts.watch_command:watch",
        "Where the time of your own script goes, and what to try",
    ),
    "patch": ("perfkit.scripts.patch_command:patch", "The edit of your own script that sets switches"),
}
NOTEBOOK = {"script_panel": "perfkit.scripts.panel:script_panel"}
