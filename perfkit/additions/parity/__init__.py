"""Whether a recipe trains as the plain program does."""

COMMANDS = {
    "parity": ("perfkit.additions.parity.command:parity", "Does a recipe train the same as the baseline?")
}
PROOFS = {"parity": "perfkit.additions.parity.study:parity"}
