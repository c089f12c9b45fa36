"""The sync detective: every copy and every wait between host and device, with the line that causes it.

    with perfkit.detect_syncs() as places:
        train_some_steps()
    for place in places:
        print(place)

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
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from perfkit.worker.failures import PROGRAM, is_users
from perfkit.worker.messages import Place

LOADER = os.sep.join(("torch", "utils", "data", ""))
OPTIMIZER = os.sep.join(("torch", "optim", ""))
SCALER = os.sep.join(("torch", "amp", "grad_scaler.py"))
SCALER_REMEDY = (
    "the GradScaler reads whether gradients overflowed: an optimizer with fused=True need not wait"
)
UNKNOWN_SIZE = (
    "the size of the result is known only to the device: use torch.where(mask, a, b), or do it on the host"
)
FIXES = {
    "item tolist numpy __float__": (
        "read it after the loop, or every N steps: losses can be kept on the device"
    ),
    "__bool__": "decide on the device (torch.where), or read the value every N steps",
    "__int__ __index__": "keep it a tensor, or use a size that is known on the host",
    "__repr__ __format__": "print every N steps, not each",
    "nonzero masked_select unique": UNKNOWN_SIZE,
    "equal allclose": "compare on the device, and read the result later",
}
"""What to do instead of calls that make the host wait for the device."""
WAITS = {name: fix for names, fix in FIXES.items() for name in names.split()}


class Call(NamedTuple):
    """A call of torch that has ended."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    seconds: float = 0.0


class Calls(TorchFunctionMode):
    """Shows every call of torch, from Python, on this thread."""

    def __init__(self, show: Callable[[Call], None]) -> None:
        super().__init__()
        self._show = show

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        seconds = time.perf_counter() - start  # without what it takes to look at the call
        self._show(Call(getattr(func, "__name__", ""), args, kwargs or {}, result, seconds))
        return result


@contextlib.contextmanager
def detect_syncs() -> Iterator[list[Place]]:
    """Lists the copies and waits of the block at its end, the most frequent place first.

    Each has its count, time and a fix.
    """
    found: dict[tuple[str, str], Place] = {}
    places: list[Place] = []
    on_gpu = torch.cuda.is_available()

    def add(place: Place, seconds: float = 0.0) -> None:
        known = found.setdefault((place.call, place.where), place)
        known.count += 1
        known.seconds += seconds

    def show(call: Call) -> None:
        place = _judge(call, on_gpu)
        if place and (where := _caller(on_gpu)):
            place.where = where
            if any(SCALER in frame.f_code.co_filename for frame, _ in traceback.walk_stack(None)):
                place.fix = SCALER_REMEDY
            add(place, call.seconds)

    driver = _driver_warnings() if on_gpu else contextlib.nullcontext(list[Any]())
    with driver as caught, Calls(show):
        yield places
    seen = {place.where for place in found.values()}
    for warning in caught:
        where = f"{os.path.basename(warning.filename)}:{warning.lineno}"
        if "synchroniz" in str(warning.message) and where not in seen:
            add(Place("synchronisation", where, "wait", "see what this line reads"))
    places += sorted(found.values(), key=lambda place: (-place.count, place.where))


@contextlib.contextmanager
def _driver_warnings() -> Iterator[list[Any]]:
    """The driver's own warnings of synchronisation, with the lines that torch names."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield caught
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _judge(call: Call, on_gpu: bool) -> Place | None:
    """A call that copies or waits, with its kind, fix and host memory; None for any other."""
    name, args, result = call.name, call.args, call.result
    copied = isinstance(result, torch.Tensor)
    is_made = name in ("tensor", "as_tensor") and copied and call.kwargs.get("device")
    if is_made and result.device.type != "cpu":
        make_once = "make it once, before the loop, on the device"
        return Place(name, "", "host to device", make_once, "pageable")
    if not args or not isinstance(args[0], torch.Tensor):
        return None
    indexes = name == "__getitem__" or (name == "__setitem__" and getattr(args[2], "ndim", None))
    fix = UNKNOWN_SIZE if indexes and _has_mask(args[1]) else WAITS.get(name)
    # With a GPU only its tensors make the host wait; without one, every tensor stands for one on a GPU.
    if fix and (not on_gpu or args[0].device.type != "cpu"):
        return Place(name, "", "wait", fix)
    return _copy(call, on_gpu) if copied and name in ("cpu", "to", "cuda", "copy_") else None


def _copy(call: Call, on_gpu: bool) -> Place | None:
    """A copy between host and device; without a GPU, `.cpu()` and `.to("cpu")` stand for one."""
    name, args, after = call.name, call.args, call.result.device.type
    source = args[1] if name == "copy_" and len(args) > 1 else args[0]
    to_cpu = name == "cpu" or any(_is_cpu(value) for value in (*args[1:], call.kwargs.get("device")))
    if source.device.type == after and (on_gpu or name == "copy_" or not to_cpu):
        return None
    if after == "cpu":
        return Place(name, "", "device to host", "keep it on the device, or read it every N steps")
    memory, fix = "pageable", "pin it in the loader (pin_memory), then copy with non_blocking"
    if source.is_pinned():
        memory, fix = "pinned", "copy with non_blocking: the memory is pinned already"
        if call.kwargs.get("non_blocking") or any(value is True for value in args[1:]):
            fix = "it overlaps as it is"
    return Place(name, "", "host to device", fix, memory)


def _is_cpu(value: Any) -> bool:
    """Whether an argument names the host. A tensor is not looked at: reading it would wait for the device."""
    return isinstance(value, str | torch.device) and torch.device(value).type == "cpu"


def _has_mask(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return any(isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8) for part in parts)


def _caller(on_gpu: bool) -> str:
    """`file:line` of the calling code; empty inside a data loader, whose tensors belong on the host.

    Without a GPU also in an optimizer, which counts its steps on the host, and in the program's own copy.
    """
    where = ""
    for frame, line in traceback.walk_stack(sys._getframe(2)):
        file = frame.f_code.co_filename
        if LOADER in file or (not on_gpu and (OPTIMIZER in file or (not where and file in PROGRAM))):
            return ""
        if not where and (is_users(file) or file in PROGRAM):
            where = f"{os.path.basename(file)}:{line}"
    return where
