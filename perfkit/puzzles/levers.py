"""The four levers of the capstone, each proven by what the script's training does on a CPU."""

import contextlib
import io
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from PIL import Image
from torch.utils.data import DataLoader

from perfkit.errors import InvalidValue
from perfkit.puzzles.bench import forwards
from perfkit.puzzles.judge import names_of


def levers(source: str) -> dict[str, bool]:
    """Trains an epoch of a script with the capstone's `main(epochs)`.

    What a script enables only where a machine gains by it is enabled here: autocast, in bfloat16.

    Returns:
        For each lever whether it was seen in effect.
    """
    kinds: set[torch.dtype] = set()
    compiled: list[Any] = []
    autocast, batches = torch.autocast.__init__, DataLoader.__iter__

    def enabled(context: Any, *_: Any, **__: Any) -> None:
        autocast(context, "cpu", torch.bfloat16)

    def seen(loader: DataLoader[Any]) -> Iterator[Any]:
        for batch in batches(loader):
            kinds.add(batch[0].dtype)
            yield batch

    def as_it_is(function: Any = None, **_: Any) -> Any:
        if function is None:  # a decorator with arguments
            return as_it_is
        compiled.append(function)
        return function

    with (
        mock.patch.object(torch.autocast, "__init__", enabled),
        mock.patch.object(DataLoader, "__iter__", seen),
        mock.patch.object(torch, "compile", as_it_is),
        mock.patch.object(torch.nn.Module, "compile", as_it_is),
        mock.patch.object(torch.cuda, "is_available", return_value=False),
        mock.patch.object(Image, "open", side_effect=Image.open) as decoded,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        main = names_of(source).get("main")
        if main is None:
            raise InvalidValue("the script has no main(epochs)", "Keep it: the levers are seen in one epoch")
        computed = {forward.dtype for forward in forwards(lambda: main(1))}
    return {
        "workers decode": not decoded.called,
        "batches are uint8": kinds == {torch.uint8},
        "layers compute in 16 bits": torch.bfloat16 in computed,
        "compiled": bool(compiled),
    }
