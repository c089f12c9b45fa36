"""Checks whether a recipe trains the same as the plain program."""

COMMANDS = {
    "parity": ("perfkit.additions.parity.command:parity", "Does a recipe train the same as the baseline?")
}
PROOFS = {"parity": "perfkit.additions.parity.study:parity"}
