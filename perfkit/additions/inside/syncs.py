"""The sync detective: every copy and every wait between host and device, with the line that causes it.

It watches the calls themselves (`.item()`, `.to()`, `nonzero` and so on). So it also finds copies that the
driver stages without a warning and, on a machine without a GPU, the places that *would* wait. On CUDA it adds
the warnings of `torch.cuda.set_sync_debug_mode`.
"""

import contextlib
import os
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from perfkit import lookup
from perfkit.additions.inside import Place, SyncReport
from perfkit.process.failures import PACKAGE, is_users
from perfkit.worker.procedure import Procedure, Procedures

TO_DEVICE = "host to device"
LOADER = os.sep.join(("torch", "utils", "data", ""))
OPTIMIZER = os.sep.join(("torch", "optim", ""))
SCALER = os.sep.join(("torch", "amp", "grad_scaler.py"))
PROGRAM = {str(PACKAGE / f"{name}.py") for name in ("train", "program")}
"""The files of the training program."""
_TABLES = lookup.toml(__package__, "syncs")
WAITS = {name: fix for names, fix in _TABLES["fixes"].items() for name in names.split()}
"""What to do instead of calls that make the host wait for the device."""
SCALER_REMEDY = _TABLES["scaler"]
UNKNOWN_SIZE = WAITS["nonzero"]


def syncs(procedures: Procedures, steps: int) -> Procedure:
    """Makes a `SyncReport` of the copies and waits between host and device in some steps."""
    device = procedures.subject.device
    with detect_syncs(on_gpu=device.type == "cuda") as places:
        for _ in range(steps):
            yield
    return SyncReport(places, steps, str(device))


@contextlib.contextmanager
def detect_syncs(on_gpu: bool | None = None) -> Iterator[list[Place]]:
    """Lists the copies and waits of a block when it ends, the most frequent place first, each with a fix.

    `on_gpu` is whether the block trains on a CUDA device; None: whether this process has used one.
    """
    places = list[Place]()
    calls = _Calls(torch.cuda.is_initialized() if on_gpu is None else on_gpu)
    waits = list[str]()
    show = warnings.showwarning

    def note(*shown: Any, **more: Any) -> None:  # message, category, file, line …
        if "called a synchronizing" in str(shown[0]):
            # The warning names the innermost frame, which is perfkit's own here.
            caller = _caller(True)
            waits.append(caller[0] if caller else f"{os.path.basename(shown[2])}:{shown[3]}")
        elif "all synchronizing operations" not in str(shown[0]):  # torch's notice about the mode itself
            show(*shown, **more)

    with calls, contextlib.ExitStack() as stack:
        if calls.on_gpu:
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("always", ".*called a synchronizing")
            warnings.showwarning = note
            stack.callback(torch.cuda.set_sync_debug_mode, torch.cuda.get_sync_debug_mode())
            torch.cuda.set_sync_debug_mode("warn")
        yield places
    counts = calls.counts
    seen = {where for _, where, *_ in counts}
    for where in waits:
        if where not in seen:
            counts["synchronisation", where, "wait", "see what this line reads"] += 1
    places += [Place(*place, count) for place, count in counts.most_common()]


class _Calls(TorchFunctionMode):
    """Counts the calls of torch on this thread, from Python, that copy or wait."""

    def __init__(self, on_gpu: bool) -> None:
        super().__init__()
        self.counts = Counter[tuple[str, str, str, str]]()
        self.on_gpu = on_gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        judgement = _judge(name, args, kwargs, result, self.on_gpu)
        if judgement and (caller := _caller(self.on_gpu)):
            kind, fix = judgement
            where, other_fix = caller
            self.counts[name, where, kind, other_fix or fix] += 1
            # The backward pass searches the mask again. On a GPU, its own warning reports that.
            if fix == UNKNOWN_SIZE and name == "__getitem__" and result.requires_grad and not self.on_gpu:
                self.counts[f"backward of {name}", where, kind, fix] += 1
        return result


def _judge(name: str, args: Any, kwargs: Any, result: Any, on_gpu: bool) -> tuple[str, str] | None:
    """The kind of a call of torch that copies or waits, and its fix; None for any other call."""
    if name in ("tensor", "as_tensor") and kwargs.get("device") and result.device.type != "cpu":
        return TO_DEVICE, "make it once, before the loop, on the device"
    if not args or not isinstance(args[0], torch.Tensor):
        return None
    fix = WAITS.get(name)
    if name == "__getitem__" or (name == "__setitem__" and getattr(args[2], "ndim", None)):
        parts = args[1] if isinstance(args[1], tuple) else (args[1],)
        if {torch.bool, torch.uint8} & {part.dtype for part in parts if isinstance(part, torch.Tensor)}:
            fix = UNKNOWN_SIZE
    # With a GPU, only its tensors make the host wait. Without one, every tensor counts as one on a GPU.
    if fix and (not on_gpu or args[0].device.type != "cpu"):
        return "wait", fix
    is_copy = name in ("cpu", "to", "cuda", "copy_") and isinstance(result, torch.Tensor)
    return _copy(name, args, kwargs, result.device.type, on_gpu) if is_copy else None


def _copy(name: str, args: Any, kwargs: Any, after: str, on_gpu: bool) -> tuple[str, str] | None:
    """Judges a copy between host and device by where its result is; without a GPU, `.cpu()` counts as one."""
    source = args[1] if name == "copy_" and len(args) > 1 else args[0]
    if source.device.type == after and (on_gpu or name != "cpu"):
        return None
    if after == "cpu":
        return "device to host", "keep it on the device, or read it every N steps"
    if not source.is_pinned():
        return TO_DEVICE, "pin it in the loader (pin_memory), then copy with non_blocking"
    if kwargs.get("non_blocking") or any(value is True for value in args[1:]):
        return TO_DEVICE, "it overlaps as it is"
    return TO_DEVICE, "copy with non_blocking: the memory is pinned already"


def _caller(on_gpu: bool) -> tuple[str, str] | None:
    """`file:line` of the calling code, and what to do if a library made the call (else empty).

    None inside a data loader, whose tensors belong on the host; without a GPU, None inside an optimizer, too,
    which counts its steps on the host.
    """
    stack = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(sys._getframe(1))]
    libraries = (LOADER,) if on_gpu else (LOADER, OPTIMIZER)
    if any(library in file for file, _ in stack for library in libraries):
        return None
    remedy = SCALER_REMEDY if any(SCALER in file for file, _ in stack) else ""
    for file, line in stack:
        if is_users(file) or file in PROGRAM:
            return f"{os.path.basename(file)}:{line}", remedy
        package = file.partition(f"-packages{os.sep}")[2].split(os.sep)[0]
        if package not in ("", "torch", "perfkit"):
            remedy = f"{package} does this: look for an option that makes it less frequent"
    return None
