"""Puzzles: checks of the learner's own code."""

from pathlib import Path

import msgspec

NOTEBOOK = {
    name: f"perfkit.additions.puzzles.panel:{name}" for name in ("puzzle", "puzzles", "mystery", "capstone")
}


def folder() -> Path:
    """Where the puzzles are written down."""
    from perfkit import machine

    return machine.shipped("puzzles")


class PuzzleVerdict(msgspec.Struct, frozen=True):
    """What the checks of a puzzle say of an answer."""

    right: bool
    sentence: str  # which mistake it is, if it is not right
    proofs: list[str] = []  # what was seen of a right answer

    def __repr__(self) -> str:
        end = "" if self.sentence.endswith((".", "?")) else "."
        return "\n".join([f"{'✓' if self.right else '✗ Not yet:'} {self.sentence}{end}", *self.proofs])
