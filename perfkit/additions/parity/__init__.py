"""Checks whether a recipe trains the same as the plain program."""

COMMANDS = {"parity": ("perfkit.additions.parity.command:parity", "Does a recipe train like the baseline?")}
PROOFS = {"parity": "perfkit.additions.parity.study:parity"}
