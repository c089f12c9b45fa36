"""Any training script as it is: its steps are observed, and switches are set from outside."""

COMMANDS = {
    "watch": (
        "perfkit.additions.scripts.command:watch",
        "Where the time of your own script goes, and what to try",
    ),
}
NOTEBOOK = {"script_panel": "perfkit.additions.scripts.panel:ScriptPanel"}
