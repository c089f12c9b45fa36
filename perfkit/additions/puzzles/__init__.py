"""Puzzles: checks of the learner's own code."""

from pathlib import Path

import msgspec

NOTEBOOK = {
    name: f"perfkit.additions.puzzles.panel:{name}" for name in ("puzzle", "puzzles", "mystery", "capstone")
}


def folder() -> Path:
    """The folder of the puzzles."""
    from perfkit import machine

    return machine.shipped("puzzles")


class PuzzleVerdict(msgspec.Struct, frozen=True):
    """The verdict of a puzzle's checks on an answer."""

    right: bool
    sentence: str  # names the mistake, if the answer is wrong
    proofs: list[str] = []  # what was observed of a right answer

    def __repr__(self) -> str:
        end = "" if self.sentence.endswith((".", "?")) else "."
        return "\n".join([f"{'✓' if self.right else '✗ Not yet:'} {self.sentence}{end}", *self.proofs])
