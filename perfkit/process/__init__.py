"""The parent's side of measuring processes: starting, asking, suspending, cancelling, ending them."""

from typing import Any

import msgspec


class Question(msgspec.Struct, frozen=True):
    """What is asked of a measuring process; its answer has the same number."""

    number: int
    name: str
    arguments: dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """The answer of a measuring process to a question."""

    value: Any
    number: int = 0
