"""Calls in a user's own files that were seen while their script trained: what a patch edits.

The watched process records them as plain data of this shape (it imports nothing of perfkit's); the parent
checks them with msgspec.
"""

from __future__ import annotations

import msgspec

ROLES = (
    "loader", "optimizer", "forward", "backward", "zero_grad", "copy", "autocast", "scaler", "compile",
)  # fmt: skip
"""Constructors of the training loader, the optimizer, an autocast, a gradient scaler; calls of the outermost
model, of `backward`, of `zero_grad`, of `.to` or `.cuda` that copied a batch, of `torch.compile`."""


class Frame(msgspec.Struct, frozen=True):
    """One call expression, and where it is: `code.co_positions()` of the running instruction."""

    file: str
    """Absolute path."""
    line: int
    """Of its first character, from 1."""
    end_line: int
    column: int
    """From 0, in bytes of UTF-8, as Python counts."""
    end_column: int
    """After its last character."""
    function: str = ""
    """The function that contains it; `<module>` at the top of a file."""


class Site(msgspec.Struct, frozen=True):
    """A call that an edit may change."""

    role: str
    """One of `ROLES`."""
    frames: list[Frame]
    """The frames of the user's own files, the innermost first; none if only libraries were involved."""
    library: str = ""
    """The package, such as `transformers`, that made the call; empty if the user's own code did, so that the
    first frame is the call itself."""
    subject: str = ""
    """The class of what was made or called, such as `AdamW`."""
    keywords: list[str] = []
    """Names of the arguments that it was given by keyword, also those from `**kwargs`."""
    images: list[str] = []
    """Of a call of a model, the arguments with four dimensions: their position from 0, or their name."""
