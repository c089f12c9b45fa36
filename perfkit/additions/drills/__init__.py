"""Drills: read the lanes of two steps, say what limits them and what to try, then see what was measured."""

NOTEBOOK = {name: f"perfkit.additions.drills.panel:{name}" for name in ("drill", "drills")}
