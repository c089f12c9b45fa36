"""Shows who has done which chapter: a short code from a learner's run, and a teacher's list of codes."""

NOTEBOOK = {"checkpoint": "perfkit.additions.checkpoint.codes:checkpoint"}
COMMANDS = {
    "checkpoint": ("perfkit.additions.checkpoint.command:checkpoint", "Check a class's list of codes"),
}
