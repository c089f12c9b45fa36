"""Is this machine fit: what can be measured on it, what to fix, and how far apart equal runs come out."""

COMMANDS = {
    "doctor": ("perfkit.additions.doctor.command:doctor", "Check this machine: what can run, its noise"),
}
