"""`torch.device("sim")`: tensors with shapes and no numbers, on which unmodified PyTorch code runs.

The checks of puzzles hear of every operator, copy and wait on it. Tensors on `sim` are fake tensors of one
mode; all private interfaces of torch that the puzzles need are in this file.
"""

import functools
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import backend_registration

aten = torch.ops.aten
NAME = "sim"


class Unpredictable(Exception):
    """The program asks for something that a device without numbers cannot answer."""


class Recorder(Protocol):
    """Takes down everything that happens on the device."""

    def operator(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operator was called, and gave `out`."""

    def hold(self, tree: Any) -> None:
        """Tensors have been made."""

    def copied(self, tensor: torch.Tensor, to: str, non_blocking: bool) -> None:
        """A tensor is copied between host and device."""

    def waits(self, what: str, streams: tuple[int, int] | None = None) -> None:
        """The host waits for the device, or one stream for another."""

    def stream(self, number: int) -> None:
        """Another stream is current from here on."""


class _Mode(FakeTensorMode):
    """The fake mode of all tensors on `sim`; tells the recorder of every outermost operator."""

    recorder: Recorder | None = None
    depth = 0

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.depth == 0 and func in _ANSWERS:
            answer = _ANSWERS[func](*args, **kwargs)
            if answer is not _ordinary:
                return answer
        self.depth += 1
        try:
            out = super().dispatch(func, types, args, kwargs)
        finally:
            self.depth -= 1
        if self.recorder and self.depth == 0 and func.namespace != "prim":
            self.recorder.operator(func, args, kwargs, out)
        return out


_ordinary = object()
_kept: list[Any] = []


@functools.cache
def mode() -> _Mode:
    """The one fake mode."""
    return _Mode(allow_non_fake_inputs=True)


def _not_protected(tensor: torch.Tensor, stream: Any) -> None:
    """In place of `record_stream`."""


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Tells `recorder` of everything that happens on the device meanwhile."""
    with (
        mock.patch.object(mode(), "recorder", recorder),
        # train.py names CUDA's streams: a build without CUDA has none that could be made.
        mock.patch.multiple(torch.cuda, Stream=Stream, current_stream=current_stream, stream=use_stream),
        # The allocator does not reuse a block while another stream reads it: not modelled.
        mock.patch.object(torch.Tensor, "record_stream", _not_protected),
    ):
        yield


def is_simulated(tensor: object) -> bool:
    """Whether it is a tensor on this device."""
    return isinstance(tensor, torch.Tensor) and tensor.device.type == NAME


# ---------------------------------------------------------------- streams


class Stream:
    """A stream, as far as the training program uses them; number 0 is the default one."""

    _numbers = itertools.count()
    _current: Any = None

    def __init__(self, device: Any = None) -> None:
        self.number = next(Stream._numbers)

    def wait_stream(self, other: "Stream") -> None:
        """What is launched on this stream from now on waits for what the other one has to do."""
        if recorder := mode().recorder:
            recorder.waits("wait_stream", (self.number, other.number))

    def synchronize(self) -> None:
        """The host waits."""
        if recorder := mode().recorder:
            recorder.waits("Stream.synchronize")


Stream._current = Stream()


def current_stream(device: Any = None) -> Stream:
    """The stream on which operators are launched."""
    current: Stream = Stream._current
    return current


@contextmanager
def use_stream(stream: Stream) -> Iterator[None]:
    """Launches on another stream meanwhile."""
    before = current_stream()
    _switch_to(stream)
    try:
        yield
    finally:
        _switch_to(before)


def _switch_to(stream: Stream) -> None:
    Stream._current = stream
    if recorder := mode().recorder:
        recorder.stream(stream.number)


# ---------------------------------------------------------------- registration


class _Module:
    """What torch asks of a device's module (`torch.sim`)."""

    Stream = Stream
    current_stream = staticmethod(current_stream)
    stream = staticmethod(use_stream)

    def is_initialized(self) -> bool:
        return True

    is_available = is_initialized

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """There are no numbers."""

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        """There are no numbers."""

    def synchronize(self, device: Any = None) -> None:
        if recorder := mode().recorder:
            recorder.waits("synchronize")

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


@functools.cache
def register() -> torch.device:
    """Makes `torch.device("sim")` known to torch; once a process."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty.memory_format", _empty, "PrivateUse1")
    library.impl("empty_strided", _empty_strided, "PrivateUse1")
    library.impl("_copy_from", lambda source, target, non_blocking=False: target, "PrivateUse1")
    library.impl("zero_", lambda tensor: tensor, "PrivateUse1")
    _kept.append(library)
    return torch.device(NAME)


def _new(elements: torch.Tensor) -> FakeTensor:
    made = FakeTensor(mode(), elements, torch.device(NAME, 0))
    if (recorder := mode().recorder) and not mode().depth:
        recorder.hold(made)
    return made


def _empty(size: Any, *, dtype: Any = None, memory_format: Any = None, **_: Any) -> FakeTensor:
    layout = memory_format or torch.contiguous_format
    return _new(torch.empty(size, dtype=dtype, device="meta", memory_format=layout))


def _empty_strided(size: Any, stride: Any, *, dtype: Any = None, **_: Any) -> FakeTensor:
    return _new(torch.empty_strided(size, stride, dtype=dtype, device="meta"))


# ---------------------------------------------------------------- operators that torch's fake tensors lack


def _read(tensor: torch.Tensor) -> Any:
    """`.item()`: the host waits; there is no number to answer with."""
    if not is_simulated(tensor):
        return _ordinary
    if recorder := mode().recorder:
        recorder.waits(".item()")
    if tensor.is_floating_point():
        return float("nan")
    raise Unpredictable("it reads a whole number or a truth value from the device and goes on with it")


def _copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
    if is_simulated(target) == is_simulated(source):
        return _ordinary
    if recorder := mode().recorder:
        recorder.copied(target, "device" if is_simulated(target) else "host", non_blocking)
    return target


def _to_copy(tensor: torch.Tensor, **options: Any) -> Any:
    device = options.get("device")
    if not is_simulated(tensor) or device is None or torch.device(device).type == NAME:
        return _ordinary
    # A real tensor: what the program goes on to do on the host works, with numbers that mean nothing.
    target = torch.zeros(tensor.shape, dtype=options.get("dtype") or tensor.dtype, device=device)
    if recorder := mode().recorder:
        recorder.copied(target, "host", bool(options.get("non_blocking")))
    return target


_ANSWERS: dict[Any, Any] = {
    aten._local_scalar_dense.default: _read,
    aten.copy_.default: _copy,
    aten._to_copy.default: _to_copy,
}
