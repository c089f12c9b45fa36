"""A double of `torch.cuda`: it runs on the CPU what perfkit asks of a GPU, and fails where a GPU would fail.

It proves that code runs, not that it is right, and no time under it says anything of a GPU: no recording is made
with it (`NAME` marks each of its runs). What is real: names and arguments, which are checked against torch's own
functions; events, which raise until they are recorded and complete; streams, each with a clock of its own; memory
peaks; the warnings of the sync debug mode, raised from inside the call. Tensors are on the CPU; those that were
copied or made "on cuda", and what operators make of them, say that they are on `cuda:0`.

A model that torch.compile compiles leaves that bookkeeping behind: its tensors say that they are on the CPU.
"""

import contextlib
import functools
import inspect
import os
import sys
import time
import types
import warnings
import weakref
from pathlib import Path

import torch
from torch.overrides import handle_torch_function, has_torch_function_unary
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

NAME = "double of CUDA (no GPU)"
UUID = "00000000-0000-0000-0000-00000000d0b1"
MEMORY = 16 << 30
CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")
SYNCHRONIZES = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "equal")
"""Operators that wait for the device, whose result the host needs."""
OURS = (__file__, torch._tensor.__file__, os.path.join("torch", "_dynamo"), os.path.join("torch", "_compile"))
"""Files between an operator and the frame that called it."""


class State:
    """What the double keeps: of one process."""

    def __init__(self):
        self.clock, self.sleep = time.perf_counter, time.sleep
        self.allocated = self.peak = self.most = 0
        self.sync_mode, self.is_capturing, self.is_initialized = 0, False, False
        self.recorded_streams, self.device_index, self.seen = [], [], set()
        self.default = None
        self.current = None


state = State()


def needs_device(device=None):
    """The index of a device, as torch finds it; it raises where there is no such GPU."""
    state.is_initialized = True
    index = device if isinstance(device, int) else torch.device("cuda" if device is None else device).index
    if index not in (None, 0):
        raise torch.AcceleratorError("CUDA error: invalid device ordinal")
    return 0


# ---------------------------------------------------------------- streams and events


class Stream:
    """A queue whose work ends at `busy_until`, by the host's clock; `work` adds some that nobody waits for."""

    def __init__(self, device=None, priority=0, **kwargs):
        needs_device(device)
        self.device, self.priority, self.busy_until = CUDA, priority, 0.0
        self.cuda_stream = self.stream_id = id(self)

    def work(self, seconds):
        self.busy_until = max(self.busy_until, state.clock()) + seconds

    def now(self):
        return max(self.busy_until, state.clock())

    def query(self):
        return state.clock() >= self.busy_until

    def synchronize(self):
        if state.is_capturing:
            raise torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
        while not self.query():
            state.sleep(self.busy_until - state.clock())

    def is_capturing(self):
        return state.is_capturing

    def wait_stream(self, stream):
        self.busy_until = max(self.busy_until, stream.busy_until)

    def wait_event(self, event):
        event.wait(self)

    def record_event(self, event=None):
        event = event or Event()
        event.record(self)
        return event

    def __enter__(self):
        self._before = current_stream()
        state.current = self
        return self

    def __exit__(self, *_):
        state.current = self._before


class Event:
    """A moment on a stream's clock."""

    def __init__(
        self, device=None, *, enable_timing=False, blocking=False, interprocess=False, external=False
    ):
        needs_device(device if not isinstance(device, bool) else None)
        self.enable_timing, self.at = enable_timing, None

    def record(self, stream=None):
        if state.is_capturing and self.enable_timing:
            raise torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
        self.at = (stream or current_stream()).now()

    def query(self):
        return self.at is None or state.clock() >= self.at

    def wait(self, stream=None):
        stream = stream or current_stream()
        stream.busy_until = max(stream.busy_until, self.at or 0.0)

    def synchronize(self):
        while not self.query():
            state.sleep(self.at - state.clock())

    def elapsed_time(self, end_event):
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.at is None or end_event.at is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.query() and end_event.query()):
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return (end_event.at - self.at) * 1e3


class CudaEvent(Event):
    """`torch.cuda.Event`, whose arguments have places."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False, external=False):
        super().__init__(enable_timing=enable_timing)


def current_stream(device=None):
    needs_device(device)
    state.default = state.default or Stream()
    return state.current or state.default


def work(seconds):
    """Work on the current stream that the host does not wait for: kernels that it launched."""
    current_stream().work(seconds)


def synchronize(device=None):
    needs_device(device)
    current_stream().synchronize()


# ---------------------------------------------------------------- memory


def mark(tensor):
    """From now on a tensor's memory counts as the GPU's."""
    with contextlib.suppress(NotImplementedError, RuntimeError):
        storage = tensor.untyped_storage()
        if not getattr(storage, "freed_on_double", None):
            change(storage.nbytes())
            storage.freed_on_double = weakref.finalize(storage, change, -storage.nbytes())
    return tensor


def unmark(tensor):
    """A copy on the host."""
    storage = tensor.untyped_storage()
    if freed := getattr(storage, "freed_on_double", None):
        freed()
        storage.freed_on_double = None
    return tensor


def change(size):
    state.allocated += size
    state.peak, state.most = max(state.peak, state.allocated), max(state.most, state.allocated)


def is_marked(tensor):
    try:
        return bool(getattr(tensor.untyped_storage(), "freed_on_double", None))
    except (NotImplementedError, RuntimeError):
        return False


def reserved(size):
    return -(-size // (2 << 20)) * (2 << 20)


def reset_peak_memory_stats(device=None):
    needs_device(device)
    state.peak = state.allocated


# ---------------------------------------------------------------- tensors


def as_torchs(function):
    """A function whose frame counts as torch's: it stands where torch has none."""
    function.__code__ = function.__code__.replace(co_filename=torch._tensor.__file__)
    return function


def is_cuda(value):
    """Whether an argument names a CUDA device; one that is not there raises."""
    if isinstance(value, torch.device) or (isinstance(value, str) and value.partition(":")[0] == "cuda"):
        device = torch.device(value)
        return device.type == "cuda" and needs_device(device) == 0
    return False


def on_cpu(args, kwargs):
    """Arguments with the CPU in the place of a CUDA device; whether there was one."""
    there = any(map(is_cuda, args)) or is_cuda(kwargs.get("device"))
    args = [CPU if is_cuda(arg) else arg for arg in args]
    return args, {name: CPU if is_cuda(arg) else arg for name, arg in kwargs.items()}, there


def mapped(plain):
    """A function of torch that makes or moves tensors, for which `cuda` is the CPU's memory with a mark."""

    @as_torchs
    @functools.wraps(plain)
    def call(*args, **kwargs):
        if has_torch_function_unary(None):  # a mode is on: it gets the call first, as from torch itself
            return handle_torch_function(call, (), *args, **kwargs)
        args, kwargs, there = on_cpu(args, kwargs)
        result = plain(*args, **kwargs)
        return mark(result) if there and isinstance(result, torch.Tensor) else result

    return call


def moved(plain):
    """`Tensor.to`: a copy where host and device change places, with a warning if the host waits for it."""

    @as_torchs
    @functools.wraps(plain)
    def to(tensor, *args, **kwargs):
        if has_torch_function_unary(tensor):
            return handle_torch_function(to, (tensor,), tensor, *args, **kwargs)
        was_there, to_cpu = is_marked(tensor), any(str(arg) == "cpu" for arg in (*args, kwargs.get("device")))
        args, kwargs, to_cuda = on_cpu(args, kwargs)
        result = plain(tensor, *args, **kwargs)
        if not (to_cuda and not was_there) and not (to_cpu and was_there):
            return mark(result) if was_there else result
        overlaps = to_cuda and tensor.is_pinned()
        if not (overlaps and (kwargs.get("non_blocking") or True in args)):
            warn_of_sync()
        if is_same(result, tensor):
            result = result.clone()
        return mark(result) if to_cuda else unmark(result)

    return to


def is_same(one, other):
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


@as_torchs
def cuda(tensor, device=None, non_blocking=False, memory_format=torch.preserve_format):
    return tensor.to(CUDA if device is None else device, non_blocking=non_blocking)


@as_torchs
def cpu(tensor, memory_format=torch.preserve_format):
    return tensor.to("cpu")


def pin_memory(tensor, device=None):
    result = tensor.clone()
    result.untyped_storage().is_pinned_by_double = True
    return result


def is_pinned(tensor, device=None):
    return getattr(tensor.untyped_storage(), "is_pinned_by_double", False)


def record_stream(tensor, stream):
    assert is_marked(tensor), "only the memory of a GPU belongs to streams"
    state.recorded_streams.append((tensor.shape, stream))


@as_torchs
def warn_of_sync():
    """As the driver's warning, which names the innermost frame of Python; an error in a capture."""
    if state.is_capturing:
        raise torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
    if state.sync_mode:
        frame, level = sys._getframe(1), 2
        while any(part in frame.f_code.co_filename for part in OURS):
            frame, level = frame.f_back, level + 1
        warnings.warn("called a synchronizing CUDA operation", stacklevel=level)


class Bookkeeping(TorchDispatchMode):
    """What operators make of tensors on the device is on the device, too."""

    @as_torchs
    def __torch_dispatch__(self, func, kinds, args=(), kwargs=None):
        if func._opname in SYNCHRONIZES and is_marked(args[0]):
            warn_of_sync()
            current_stream().synchronize()
        result = func(*args, **(kwargs or {}))
        if any(isinstance(arg, torch.Tensor) and is_marked(arg) for arg in tree_iter((args, kwargs))):
            for tensor in tree_iter(result):
                if isinstance(tensor, torch.Tensor):
                    mark(tensor)
        return result


bookkeeping = Bookkeeping()


def leaving(plain):
    """`torch.compile`: it needs a stack without modes, and tensors that say where their memory is."""

    @functools.wraps(plain)
    def compile(*args, **kwargs):
        if "entered" in state.seen:
            state.seen.discard("entered")
            bookkeeping.__exit__(None, None, None)
            del torch.Tensor.device, torch.Tensor.is_cuda
            sys.settrace(None)  # lines are not noted while a compiler runs: it would take minutes
            torch.cuda.is_available = no_gpu  # else inductor looks for the driver's library
        return plain(*args, **kwargs)

    return compile


def profiled(plain):
    """`torch.profiler.profile.__init__`: of a GPU that is not there it would report an error at every operator."""

    @functools.wraps(plain)
    def begin(self, *, activities=None, **kwargs):
        kinds = torch.profiler.ProfilerActivity
        plain(self, activities=(activities and {*activities} - {kinds.CUDA}) or {kinds.CPU}, **kwargs)

    return begin


# ---------------------------------------------------------------- installing


def checked(real, fake):
    """A fake that refuses arguments which the real function would refuse."""
    signature = inspect.signature(real)

    @functools.wraps(real)
    def call(*args, **kwargs):
        signature.bind(*args, **kwargs)
        return fake(*args, **kwargs)

    return call


def properties(device):
    needs_device(device)
    return types.SimpleNamespace(
        name=NAME,
        uuid=UUID,
        major=8,
        minor=0,
        total_memory=MEMORY,
        multi_processor_count=1,
        is_integrated=0,
    )


def memory_info(device=None):
    needs_device(device)
    return MEMORY - state.allocated, MEMORY


def count():
    return 1


def always(answer, initializes=False):
    def function(*args, **kwargs):
        state.is_initialized |= initializes
        return answer() if callable(answer) else answer

    return function


def set_sync_debug_mode(debug_mode):
    names = {"default": 0, "warn": 1, "error": 2}
    state.sync_mode = names.get(debug_mode, debug_mode)


def set_device(device):
    state.device_index.append(needs_device(device))


def no_gpu():
    return False


SHARED = {
    "is_available": always(True),
    "device_count": count,
    "synchronize": synchronize,
    "current_stream": current_stream,
    "max_memory_allocated": always(lambda: state.peak, initializes=True),
    "max_memory_reserved": always(lambda: reserved(state.most), initializes=True),
    "memory_allocated": always(lambda: state.allocated, initializes=True),
    "memory_reserved": always(lambda: reserved(state.most), initializes=True),
    "reset_peak_memory_stats": reset_peak_memory_stats,
}
OF_CUDA = SHARED | {
    "is_initialized": always(lambda: state.is_initialized),
    "current_device": always(0),
    "set_device": set_device,
    "get_device_name": lambda device=None: properties(device or 0).name,
    "get_device_properties": lambda device=None: properties(device),
    "get_device_capability": lambda device=None: (8, 0),
    "is_bf16_supported": lambda including_emulation=True: True,
    "is_tf32_supported": always(True),
    "mem_get_info": memory_info,
    "stream": lambda stream: stream,
    "is_current_stream_capturing": always(lambda: state.is_capturing),
    "get_sync_debug_mode": always(lambda: state.sync_mode),
    "set_sync_debug_mode": set_sync_debug_mode,
    "manual_seed": always(None),
    "manual_seed_all": always(None),
    "get_rng_state": always(torch.get_rng_state),
    "set_rng_state": always(None),
}
OF_ACCELERATOR = SHARED | {
    "current_accelerator": always(torch.device("cuda")),
    "current_device_index": always(0),
    "set_device_index": set_device,
    "get_memory_info": memory_info,
}


def with_cpu(plain, place=0):
    """A function that takes the kind of a device, as `torch.autocast`: `cuda` is the CPU."""

    @functools.wraps(plain)
    def call(*args, **kwargs):
        args = [
            str(arg).replace("cuda", "cpu") if at == place and is_cuda(arg) else arg
            for at, arg in enumerate(args)
        ]
        kwargs = {
            name: "cpu" if name in ("device", "device_type") and is_cuda(arg) else arg
            for name, arg in kwargs.items()
        }
        return plain(*args, **kwargs)

    return call


def replacements():
    """Everything that changes: holder, name, and what stands there."""
    for module, fakes in ((torch.cuda, OF_CUDA), (torch.accelerator, OF_ACCELERATOR)):
        for name, fake in fakes.items():
            if hasattr(module, name):  # a version of torch without it stays without it
                yield module, name, checked(getattr(module, name), fake)
    yield torch.cuda, "Stream", Stream
    yield torch.cuda, "Event", CudaEvent
    yield torch, "Stream", Stream
    yield torch, "Event", Event
    for function in _device_constructors():
        if getattr(torch, function.__name__, None) is function:
            yield torch, function.__name__, mapped(function)
    yield torch.Tensor, "to", moved(torch.Tensor.to)
    for fake in (cuda, cpu, pin_memory, is_pinned, record_stream):
        yield torch.Tensor, fake.__name__, fake
    real = torch.Tensor.device
    yield torch.Tensor, "device", property(lambda tensor: CUDA if is_marked(tensor) else real.__get__(tensor))
    yield torch.Tensor, "is_cuda", property(is_marked)
    yield torch.autocast, "__init__", with_cpu(torch.autocast.__init__, 1)
    yield torch.amp.GradScaler, "__init__", with_cpu(torch.amp.GradScaler.__init__, 1)
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        yield torch, name, with_cpu(getattr(torch, name))
    yield torch.profiler.profile, "__init__", profiled(torch.profiler.profile.__init__)
    yield torch, "compile", leaving(torch.compile)


@contextlib.contextmanager
def installed():
    """Within, this process has the double in the place of CUDA."""
    changes = [(holder, name, vars(holder).get(name), new) for holder, name, new in replacements()]
    state.__init__()
    for holder, name, _, new in changes:
        setattr(holder, name, new)
    state.seen.add("entered")
    bookkeeping.__enter__()
    try:
        yield state
    finally:
        if "entered" in state.seen:
            bookkeeping.__exit__(None, None, None)
        for holder, name, old, _ in reversed(changes):
            if old is not None:
                setattr(holder, name, old)
            elif name in vars(holder):
                delattr(holder, name)


def environment():
    """Variables with which a Python process, and what it starts, has the double: NVML's too."""
    here = Path(__file__).parent / "on_path"
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))}
