"""Inside somebody else's training script, unmodified: its steps are seen, switches are set from outside."""

NOTEBOOK = {"script_panel": "perfkit.scripts.panel:script_panel"}
