"""Puzzles: checks of the learner's own code."""

from pathlib import Path

NOTEBOOK = {name: f"perfkit.puzzles.panel:{name}" for name in ("puzzle", "puzzles", "mystery", "capstone")}


def folder() -> Path:
    """Where the puzzles are written down.

    Raises:
        InvalidValue: nowhere: perfkit was installed without its notebooks.
    """
    from perfkit import machine
    from perfkit.errors import InvalidValue

    tree = machine.checkout()
    if tree is None:
        raise InvalidValue("there are no puzzles here", "Work in a copy of perfkit's repository")
    return tree / "data" / "puzzles"
