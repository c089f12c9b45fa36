"""Puzzles: checks of the learner's own code."""

NOTEBOOK = {name: f"perfkit.puzzles.panel:{name}" for name in ("puzzle", "puzzles", "mystery", "capstone")}
