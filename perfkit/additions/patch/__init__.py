"""The edit of a script that sets switches, at the calls that were seen while it trained."""

COMMANDS = {"patch": ("perfkit.additions.patch.command:patch", "Edit your script so that it sets switches")}
EDITS = {"patch": "perfkit.additions.patch.edits:make"}
