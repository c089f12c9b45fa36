"""Puzzles: checks of the learner's own code."""
