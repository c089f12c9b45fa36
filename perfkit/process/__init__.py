"""The parent's side of measuring processes: starting, asking, cancelling, ending them."""

from typing import Any

import msgspec


class Answer(msgspec.Struct, frozen=True):
    """The answer of a measuring process to a question."""

    value: Any
