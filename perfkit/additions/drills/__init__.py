"""Drills: read the lanes of two steps, say what limits them and what to try, then see the measured result."""

NOTEBOOK = {name: f"perfkit.additions.drills.panel:{name}" for name in ("drill", "drills")}
