"""Checks this machine: what can be measured on it, what to fix, and how much equal runs differ."""

COMMANDS = {"doctor": ("perfkit.additions.doctor.command:doctor", "Check this machine: what runs, its noise")}
