"""The parent's side of measuring processes: it starts, asks, suspends, cancels and ends them."""

from typing import Any

import msgspec


class Question(msgspec.Struct, frozen=True):
    """A question to a measuring process. The answer has the same number."""

    number: int
    name: str
    arguments: dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """The answer of a measuring process to a question."""

    value: Any
    number: int = 0
