"""The sync detective: every copy and every wait between host and device, with the line that causes it.

    with perfkit.detect_syncs() as syncs:
        train_some_steps()
    print(syncs.table())

The calls themselves are watched (`.item()`, `.to()`, `nonzero` and so on). This also finds copies that the
driver stages without a warning and, on a machine without a GPU, the places that *would* wait. On CUDA the
driver's own warnings (`torch.cuda.set_sync_debug_mode`) are added.
"""

import contextlib
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from perfkit.worker.failures import is_program, is_users
from perfkit.worker.reports import ITEM_REMEDY, TO_HOST_REMEDY, Place, SyncReport, copy_remedy
from perfkit.worker.training import Training

_LOADER = os.sep.join(("torch", "utils", "data", ""))
_OPTIMIZER = os.sep.join(("torch", "optim", ""))
_WAITS = {
    "item": ITEM_REMEDY,
    "tolist": "read it after the loop, or every N steps",
    "numpy": "read it after the loop, or every N steps",
    "__bool__": "decide on the device (torch.where), or read the value every N steps",
    "__float__": "keep it a tensor, or read it every N steps",
    "__int__": "keep it a tensor, or use a size that is known on the host",
    "__index__": "use a size that is known on the host",
    "__repr__": "print every N steps, not each",
    "__format__": "print every N steps, not each",
    "nonzero": "the size of the result is known only to the device: use torch.where(mask, a, b)",
    "masked_select": "the size of the result is known only to the device: use torch.where(mask, a, b)",
    "unique": "the size of the result is known only to the device: do it on the host, in the data set",
    "equal": "compare on the device (a == b), and read the result later",
    "allclose": "compare on the device, and read the result later",
}
"""Calls that make the host wait for the device, each with what to do instead."""


@dataclass
class Syncs:
    """Copies and waits by place, over a number of steps."""

    places: dict[tuple[str, str], Place] = field(default_factory=dict)
    steps: int = 1

    def add(self, place: Place) -> None:
        """Counts a call at its place."""
        first = self.places.setdefault((place.call, place.where), place)
        first.count += 1
        if first is not place:
            first.bytes += place.bytes
            first.seconds += place.seconds

    def sorted(self) -> list[Place]:
        """The most frequent first."""
        return sorted(self.places.values(), key=lambda place: (-place.count, place.where))

    def table(self) -> str:
        """One line per place, for people."""
        if not self.places:
            return "no copy and no wait between host and device"
        return "\n".join(
            f"{place.where}  {place.call} ({place.kind}{', ' + place.memory if place.memory else ''}): "
            f"{place.count / self.steps:g} a step, {place.bytes / self.steps:,.0f} B, "
            f"{1e3 * place.seconds / self.steps:.3f} ms. {place.fix}"
            for place in self.sorted()
        )


class _Watch(TorchFunctionMode):
    """Sees every call of torch, from Python, on the calling thread."""

    def __init__(self, syncs: Syncs, device: str) -> None:
        super().__init__()
        self.syncs = syncs
        self.device = device

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        seconds = time.perf_counter() - start  # of the call alone, without what it takes to judge it
        place = _judge(getattr(func, "__name__", ""), args, kwargs or {}, result, self.device)
        if place and (where := _caller(self.device)):
            place.where, place.seconds = where, seconds
            self.syncs.add(place)
        return result


def _judge(name: str, args: Any, kwargs: dict[str, Any], result: Any, device: str) -> Place | None:
    """A call that copies or waits, with its kind, fix, host memory and bytes; None for any other."""
    source = args[0] if args and isinstance(args[0], torch.Tensor) else None
    is_tensor = isinstance(result, torch.Tensor)
    if name in _WAITS and source is not None and _counts(source, device):
        size = source.nbytes if name in ("item", "tolist", "numpy") else 0
        return Place(name, "", "wait", _WAITS[name], bytes=size)
    if name == "__getitem__" and source is not None and _has_mask(args[1]) and _counts(source, device):
        fix = "the size of the result is known only to the device: use torch.where"
        return Place(name, "", "wait", fix)
    if name == "__setitem__" and source is not None and _has_mask(args[1]) and not _is_scalar(args[2]):
        return Place(name, "", "wait", "use masked_fill_ or torch.where")
    if name in ("cpu", "to", "cuda", "copy_") and is_tensor and source is not None:
        return _copy(name, args, kwargs, source, result, device)
    if name in ("tensor", "as_tensor") and is_tensor and result.device.type != "cpu" and kwargs.get("device"):
        fix = "make it once, before the loop, on the device"
        return Place(name, "", "host to device", fix, "pageable", bytes=result.nbytes)
    return None


def _copy(
    name: str, args: Any, kwargs: dict[str, Any], source: torch.Tensor, result: torch.Tensor, device: str
) -> Place | None:
    """A copy between host and device; without a GPU, `.cpu()` and `.to("cpu")` stand for one."""
    copied = args[1] if name == "copy_" and len(args) > 1 else source
    before, after = copied.device.type, result.device.type
    to_cpu = name == "cpu" or any(_is_cpu(value) for value in (*args[1:], kwargs.get("device")))
    stands_for_one = device == "cpu" and name != "copy_" and to_cpu
    if before == after and not stands_for_one:
        return None
    if after == "cpu":
        return Place(name, "", "device to host", TO_HOST_REMEDY, bytes=copied.nbytes)
    memory = "pinned" if copied.is_pinned() else "pageable"
    asynchronous = kwargs.get("non_blocking") or any(value is True for value in args[1:])
    fix = copy_remedy(memory, bool(asynchronous))
    return Place(name, "", "host to device", fix, memory, bytes=copied.nbytes)


def _is_cpu(value: Any) -> bool:
    """Whether an argument names the host. A tensor is not looked at: reading it would wait for the device."""
    return isinstance(value, str | torch.device) and torch.device(value).type == "cpu"


def _counts(tensor: torch.Tensor, device: str) -> bool:
    """With a GPU only its tensors make the host wait; without one, every tensor stands for one on a GPU."""
    return device == "cpu" or tensor.device.type != "cpu"


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8) for part in parts)


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.dim() == 0


def _caller(device: str) -> str:
    """`file:line` of the calling code; empty inside a data loader, whose tensors belong on the host."""
    where = ""
    for frame, line in traceback.walk_stack(sys._getframe(2)):
        file = frame.f_code.co_filename
        if _LOADER in file or (_OPTIMIZER in file and device == "cpu"):  # which counts its steps on the host
            return ""
        if not where and (is_users(file) or is_program(file)):
            if is_program(file) and device == "cpu":
                return ""  # the program's own copy to the device: on a CPU it is none
            where = f"{os.path.basename(file)}:{line}"
    return where


@contextlib.contextmanager
def detect_syncs(steps: int = 1) -> Iterator[Syncs]:
    """Lists the copies and waits of the block: each place with its count, bytes, time and a fix.

    Args:
        steps: training steps that the block takes, for figures per step.
    """
    syncs = Syncs(steps=steps)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with contextlib.ExitStack() as stack:
        if device == "cuda":
            stack.enter_context(_driver_warnings(syncs))
        stack.enter_context(_Watch(syncs, device))
        yield syncs


def report(training: Training, steps: int) -> SyncReport:
    """Copies and waits of some steps of a training."""
    with detect_syncs(steps) as syncs:
        for _ in range(steps):
            training.step()
    return SyncReport(syncs.sorted(), steps, str(training.device))


@contextlib.contextmanager
def _driver_warnings(syncs: Syncs) -> Iterator[None]:
    """The driver's own warnings of synchronisation, with the line that torch names."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for warning in caught:
        if "synchroniz" in str(warning.message):
            where = f"{os.path.basename(warning.filename)}:{warning.lineno}"
            if not any(at == where for _, at in syncs.places):
                syncs.add(Place("synchronisation", where, "wait", "see what this line reads"))


@contextlib.contextmanager
def assert_no_sync(allow: int = 0) -> Iterator[None]:
    """Fails if the block copies or waits more often than allowed; for your own tests.

    Raises:
        AssertionError: with the places.
    """
    with detect_syncs() as syncs:
        yield
    count = sum(place.count for place in syncs.places.values())
    if count > allow:
        raise AssertionError(f"{count} copies or waits between host and device:\n{syncs.table()}")
