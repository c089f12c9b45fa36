"""Whether the simulated device does what it should with this torch: checked before it is first used.

Nearly everything that may change in torch's private interfaces would change predictions without an error: an
optimizer that falls back to loops, a lost memory layout, a compiler that traces nothing. So a small net takes
a step, and its operators are counted.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from perfkit.errors import InvalidValue
from perfkit.simulate import device, operators, recording
from perfkit.simulate.step import Step, Tensor

TESTED = ("2.11", "2.15")
_EAGER = {
    "aten.convolution": 2, "aten.add_": 1, "aten.native_batch_norm": 1, "aten.relu_": 1, "aten.mean": 1,
    "aten.addmm": 1, "aten._log_softmax": 1, "aten.nll_loss_forward": 1, "aten.ones_like": 1,
    "aten.nll_loss_backward": 1, "aten._log_softmax_backward_data": 1, "aten.mm": 2, "aten.sum": 1,
    "aten.div": 1, "aten.convolution_backward": 2, "aten.threshold_backward": 1,
    "aten.native_batch_norm_backward": 1, "aten._foreach_mul_": 1, "aten._foreach_add_": 2,
}  # fmt: skip
_CASTS = 11
"""Forward: the images, three weights, a bias, the logits back to float32; backward: all but the images."""


class Small(nn.Module):
    """Two convolutions with batch norm between them, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
            nn.Conv2d(8, 8, 3, padding=1, bias=False),
        )  # fmt: skip
        self.head = nn.Linear(8, 4)

    def forward(self, images: torch.Tensor) -> Any:
        """Logits of 4 classes."""
        return self.head(self.layers(images).mean((2, 3)))


def check(compiled: bool = False) -> None:
    """Passes, or raises; only the first call takes time.

    Raises:
        InvalidValue: the device does not do what it should, with the part that failed.
    """
    _check("eager")
    if compiled:
        _check("compiled")


@functools.cache
def _check(group: str) -> None:
    for part, test in _PARTS[group].items():
        try:
            wrong = test()
        except Exception as problem:  # anything may happen with interfaces that have changed
            wrong = recording.reason(problem)
        if wrong:
            raise InvalidValue(
                f"simulated GPUs do not work with torch {torch.__version__} ({part}: {wrong})",
                f"Tested are torch {' and '.join(TESTED)}; install one of them, or measure on this machine",
            )


def step_of(**options: Any) -> Step:
    """A training step of the small net."""
    return operators.of_model(Small, [Tensor((2, 3, 8, 8), "float32")], **options)


def counts(step: Step) -> dict[str, int]:
    """Operators by name."""
    return dict(collections.Counter(operator.name for operator in step.operators))


def difference(found: dict[str, int], expected: dict[str, int]) -> str:
    """What is not as expected; empty if nothing is."""
    names = sorted({*found, *expected})
    wrong = [
        f"{name} {found.get(name, 0)} times instead of {expected.get(name, 0)}"
        for name in names
        if found.get(name, 0) != expected.get(name, 0)
    ]
    return "; ".join(wrong)


def _eager() -> str:
    return difference(counts(step_of()), _EAGER)


def _channels_last() -> str:
    step = step_of(channels_last=True)
    layouts = {
        tensor.layout for op in step.operators if "convolution" in op.name for tensor in op.outputs
        if len(tensor.shape) == 4
    }  # fmt: skip
    wrong = difference(counts(step), _EAGER)
    return wrong or (
        "" if layouts == {"channels_last"} else f"convolutions give {', '.join(sorted(layouts))}"
    )


def _autocast() -> str:
    step = step_of(amp="bf16")
    casts = {"aten._to_copy": counts(step).get("aten._to_copy", 0)}
    results = {op.outputs[0].dtype for op in step.operators if op.name == "aten.convolution"}
    wrong = difference(casts, {"aten._to_copy": _CASTS})
    return wrong or ("" if results == {"bfloat16"} else f"convolutions give {', '.join(sorted(results))}")


def _reading() -> str:
    record = recording.Recording()
    record.on = True
    with device.recording(record):
        torch.empty((), device=device.register()).item()
    waits = [event for event in record.events if type(event).__name__ == "Wait"]
    return "" if len(waits) == 1 else f"{len(waits)} waits instead of 1"


def _compiled() -> str:
    step = step_of(compiled=True)
    found = counts(step)
    kept = {name: found.get(name, 0) for name in ("aten.convolution", "aten.convolution_backward")}
    eager = {name for name in found if "batch_norm" in name or "relu" in name}
    wrong = difference(kept, {"aten.convolution": 2, "aten.convolution_backward": 2})
    return wrong or ("" if found.get("fused") and not eager else "nothing was fused")


_PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "eager": {
        "operators of a training step": _eager, "channels_last": _channels_last, "autocast": _autocast,
        "reading a value": _reading,
    },
    "compiled": {"torch.compile": _compiled},
}  # fmt: skip
