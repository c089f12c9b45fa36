"""What the checks of the puzzles use: plain training, what can be seen of a call, a GPU with a clock.

The checks are in `checks/`; they import the answer's names, `original` and `proof` from `judged`.
"""

import contextlib
import io
import itertools
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from PIL import Image
from torch import distributed, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, Dataset

from perfkit import detect_syncs

aten = torch.ops.aten


class Wrong(Exception):
    """An answer that does not pass, with the sentence that the learner reads."""


def require(ok: object, sentence: str) -> None:
    """Ends the check with this sentence unless `ok`."""
    if not ok:
        raise Wrong(sentence)


def same(actual: Any, expected: Any, sentence: str, **tolerance: Any) -> None:
    """Ends the check with this sentence unless all numbers are close, as `torch.testing.assert_close`."""
    try:
        torch.testing.assert_close(actual, expected, **tolerance)
    except (AssertionError, TypeError, ValueError):
        raise Wrong(sentence) from None


class Numbers(Dataset[Any]):
    """Samples that say who fetched them: the index, and the process."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return index, os.getpid()


# ---------------------------------------------------------------- training


def network() -> nn.Sequential:
    """A small classifier: 16 inputs, 4 classes."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def data(batches: int = 4, size: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random batches: inputs float32[size, 16], targets int64[size]; others each time."""
    generator = torch.Generator().manual_seed(time.time_ns() % 2**31)
    return [
        (torch.randn(size, 16, generator=generator), torch.randint(4, (size,), generator=generator))
        for _ in range(batches)
    ]


def plain_loop(model: nn.Module, optimizer: Any, batches: Iterable[Any]) -> list[torch.Tensor]:
    """Trains on each batch; the losses."""
    losses = []
    for inputs, targets in batches:
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@dataclass
class Trained:
    """What a loop did: its result, what the model got call by call, how often the optimizer stepped."""

    result: Any
    model: nn.Module
    optimizer: Any
    seen: list[torch.Tensor] = field(default_factory=list)
    updates: int = 0

    @property
    def weights(self) -> list[torch.Tensor]:
        """Copies of its parameters."""
        return [weight.detach().clone() for weight in self.model.parameters()]


def train(
    loop: Callable[..., Any],
    batches: Iterable[Any],
    *more: Any,
    optimizer: Callable[..., Any] = lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    model: nn.Module | None = None,
) -> Trained:
    """Calls `loop(model, optimizer, batches, *more)` and watches it."""
    model = model or network()
    trained = Trained(None, model, optimizer(model.parameters()))

    def count(*_: object) -> None:
        trained.updates += 1

    model.register_forward_pre_hook(lambda _, args: trained.seen.append(args[0].detach().clone()))
    trained.optimizer.register_step_post_hook(count)
    trained.result = loop(model, trained.optimizer, batches, *more)
    return trained


def trains_the_same(loop: Callable[..., Any], batches: list[Any]) -> Trained:
    """Trains with the learner's `loop(model, optimizer, batches)` and the plain one; compares them.

    Raises:
        Wrong: a batch was left out or used twice, samples are missing, or the weights differ.
    """
    learner = train(loop, iter(batches))
    compare(learner, train(plain_loop, batches))
    return learner


def trains_as(own: Callable[..., Any], original: Callable[..., Any], *more: Any) -> None:
    """Calls two functions that train and return the losses of their steps; compares the losses.

    Raises:
        Wrong: they differ.
    """
    losses = [torch.as_tensor(loss) for loss in own(*more)]
    expected = original(*more)
    require(
        len(losses) == len(expected), f"It returns {len(losses)} losses and should return {len(expected)}"
    )
    other = "It trains differently: the losses are not those of the original script"
    same(torch.stack(losses).float(), torch.stack(expected).float(), other, rtol=1e-3, atol=1e-4)


def compare(learner: Trained, plain: Trained) -> None:
    """The same samples in the same order, as many updates, the same weights.

    Raises:
        Wrong: they differ.
    """
    require(learner.seen, "The model was never called: every batch has to go through it")
    samples, expected = sum(map(len, learner.seen)), sum(map(len, plain.seen))
    require(samples == expected, f"The model saw {samples} samples and should see {expected}: leave none out")
    order = "The model did not see the batches that it was given, in their order: is one used twice?"
    same(torch.cat(learner.seen).float(), torch.cat(plain.seen).float(), order)
    require(learner.updates, "The optimizer never made a step")
    steps = f"The optimizer made {learner.updates} steps and should make {plain.updates}"
    require(learner.updates == plain.updates, steps)
    moved = not all(map(torch.equal, learner.weights, network().parameters()))
    still = "Nothing was learnt: the weights are as at the start. Is there a backward pass from the loss?"
    require(moved, still)
    other = "It trains differently: the weights are not those of the plain loop on the same batches"
    same(learner.weights, plain.weights, other, rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------- what can be seen of a call


def waits(call: Callable[[], Any]) -> list[str]:
    """The lines of the answer that would make the host wait for a GPU: one entry for each wait or copy."""
    # What is checked trains on the CPU; where a GPU is there, only its own tensors would make the host wait.
    with mock.patch.object(torch.cuda, "is_available", return_value=False), detect_syncs() as places:
        call()
    return [place.call for place in places for _ in range(place.count)]


class Operators(TorchDispatchMode):
    """The operators of torch while it is entered, backward included, and how many each step takes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.names: list[str] = []
        self.result_bytes: list[int] = []
        self._ends = [0]

    @property
    def by_step(self) -> list[int]:
        """From the end of one optimizer step to that of the next."""
        return [end - start for start, end in itertools.pairwise(self._ends)]

    def end_step(self, *_: Any) -> None:
        """Called by each optimizer after its step."""
        self._ends.append(len(self.names))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.append(func.name())
        self.result_bytes.append(result.nbytes if isinstance(result, torch.Tensor) else 0)
        return result


def operators(call: Callable[[], Any]) -> Operators:
    """The operators of torch that a call dispatches."""
    seen = Operators()
    hook = register_optimizer_step_post_hook(seen.end_step)
    with seen:
        call()
    hook.remove()
    return seen


@dataclass
class Forward:
    """A call of a module."""

    module: nn.Module
    samples: int
    dtype: torch.dtype
    """Of what it computes."""
    threads: int
    recorded: bool
    """Whether autograd computes gradients of its parameters."""


def forwards(call: Callable[[], Any]) -> list[Forward]:
    """The calls of modules, in the order of their ends."""
    seen: list[Forward] = []

    def note(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        recorded = torch.is_grad_enabled() and any(weight.requires_grad for weight in module.parameters())
        seen.append(Forward(module, len(inputs[0]), output.dtype, torch.get_num_threads(), recorded))

    hook = register_module_forward_hook(note)
    call()
    hook.remove()
    return seen


def opens(call: Callable[[], Any], name: str) -> int:
    """How often a call opens files of this name."""
    with mock.patch("builtins.open", side_effect=open) as opened:
        call()
    return sum(Path(each.args[0]).name == name for each in opened.call_args_list)


def saved_bytes(call: Callable[[], Any]) -> int:
    """Bytes that autograd keeps for the backward pass while `call` runs forward."""
    sizes: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        call()
    return sum(sizes.values())


@contextlib.contextmanager
def one_rank(model: nn.Module) -> Iterator[tuple[DistributedDataParallel, list[int]]]:
    """The model in DDP, with one rank; and the bytes of each bucket of gradients that is averaged."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    averaged: list[int] = []

    def average(_: Any, bucket: Any) -> Any:
        averaged.append(bucket.buffer().nbytes)
        done: Any = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    average.__annotations__.clear()  # DDP compares annotations with types of its own
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            parallel = DistributedDataParallel(model)
            parallel.register_comm_hook(None, average)
            yield parallel, averaged
        finally:
            distributed.destroy_process_group()


# ---------------------------------------------------------------- a GPU with a clock


class Clock:
    """The host's time, and until when each stream of a GPU is busy."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ends: dict[int, float] = defaultdict(float)

    def launch(self, host_s: float, device_s: float, stream: int = 0) -> None:
        """The host launches work and goes on."""
        self.now += host_s
        self.ends[stream] = max(self.now, self.ends[stream]) + device_s

    @property
    def end(self) -> float:
        """When all that was launched is done."""
        return max(self.now, *self.ends.values(), 0.0)

    def wait(self, *_: object) -> None:
        """The host waits for all that was launched."""
        self.now = self.end


@dataclass
class Stream:
    """A stream of a simulated GPU; number 0 is the one that is current at first."""

    gpu: "SimulatedGpu"
    number: int

    def __enter__(self) -> "Stream":
        self.gpu.entered.append(self.gpu.current)
        self.gpu.current = self
        return self

    def __exit__(self, *problem: object) -> None:
        self.gpu.current = self.gpu.entered.pop()

    def wait_stream(self, other: "Stream") -> None:
        """What is launched on this stream from now on waits for what the other one has to do."""
        ends = self.gpu.clock.ends
        ends[self.number] = max(ends[self.number], ends[other.number])
        self.gpu.ordered[self.number, other.number] = len(self.gpu.copies)

    def synchronize(self) -> None:
        """The host waits."""
        self.gpu.wait()


class SimulatedGpu(TorchDispatchMode):
    """A GPU while it is entered: torch's device `meta`, whose tensors have shapes but no numbers; a clock.

    Every operator takes the same time, copies take theirs. `torch.cuda.Stream`, `stream`, `current_stream`
    and `synchronize` are those of this GPU.

    Args:
        kernel_s: of each operator.
        link_gbs: of copies, which are from pinned memory.
    """

    device = torch.device("meta")

    def __init__(self, kernel_s: float = 1e-3, link_gbs: float = 10.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.kernel_s, self.link_gbs = kernel_s, link_gbs
        self.clock = Clock()
        self.copies: list[tuple[torch.Tensor, bool, int]] = []
        """To the device: tensor, non_blocking, stream."""
        self.to_host = 0
        self.unsafe = 0
        """Operators that may read a batch before its copy has ended."""
        self.ordered: dict[tuple[int, int], int] = {}
        """Up to which copy of the second stream the first one has waited."""
        self._protected: set[int] = set()
        self._copied: dict[int, tuple[int, int]] = {}
        """Of each storage that was copied: the number of the copy, from 1, and its stream."""
        self._numbers = itertools.count(1)
        self.current = Stream(self, 0)
        self.entered: list[Stream] = []
        """The streams that come back when those that were entered are left."""

    def __enter__(self) -> "SimulatedGpu":
        def make(*_: Any, **__: Any) -> Stream:
            return Stream(self, next(self._numbers))

        cuda: dict[str, Any] = {
            "Stream": make,
            "stream": lambda stream: stream,
            "current_stream": lambda *_: self.current,
            "synchronize": self.wait,
        }
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(mock.patch.multiple(torch.cuda, **cuda))
        self._stack.enter_context(mock.patch.object(torch, "Stream", make))
        self._stack.enter_context(mock.patch.object(torch.accelerator, "current_stream", cuda["current_stream"]))
        protect = mock.patch.object(
            torch.Tensor, "record_stream", lambda tensor, _: self._protected.add(_storage(tensor))
        )
        self._stack.enter_context(protect)
        super().__enter__()  # type: ignore[no-untyped-call]  # torch's
        return self

    def __exit__(self, *problem: Any) -> None:
        super().__exit__(*problem)  # type: ignore[no-untyped-call]  # torch's
        self._stack.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        here = [arg for arg in args if isinstance(arg, torch.Tensor) and arg.is_meta]
        if func is aten._local_scalar_dense.default and here:
            self.wait()
            return float("nan")
        to_host = torch.device(kwargs.get("device") or "meta") != self.device
        if func is aten._to_copy.default and here and to_host:
            self.to_host += 1
            self.wait()
            return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        out = func(*args, **kwargs)
        if func is aten._to_copy.default and out.is_meta and not here:
            self._copy(out, bool(kwargs.get("non_blocking")))
        elif func is aten.copy_.default and args[0].is_meta and not args[1].is_meta:
            self._copy(args[0], len(args) > 2 and args[2])
        elif here:
            self._operator(func.name(), here)
        return out

    def _copy(self, tensor: torch.Tensor, non_blocking: bool) -> None:
        stream = self.current.number
        self.copies.append((tensor, non_blocking, stream))
        self._copied[_storage(tensor)] = len(self.copies), stream
        self.clock.launch(1e-5, tensor.nbytes / (1e9 * self.link_gbs), stream)
        if not non_blocking:
            self.wait()

    def _operator(self, name: str, tensors: list[torch.Tensor]) -> None:
        current = self.current.number
        for tensor in tensors:
            number, stream = self._copied.get(_storage(tensor), (0, current))
            self.unsafe += stream != current and number > self.ordered.get((current, stream), 0)
        if "empty" not in name and "view" not in name:
            self.clock.launch(1e-5, self.kernel_s, current)

    def wait(self, *_: object) -> None:
        """The host waits, and then all copies have ended."""
        self._copied.clear()
        self.clock.wait()

    def is_protected(self, tensor: torch.Tensor) -> bool:
        """Whether `record_stream` keeps its memory from being used again too early."""
        return _storage(tensor) in self._protected

    @property
    def seconds(self) -> float:
        """Until all that was launched is done."""
        return self.clock.end


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class AsyncGpu:
    """A GPU that is only a queue of steps; the first one takes the host longer: compiling, allocating."""

    def __init__(self, kernel_s: float) -> None:
        self.kernel_s = kernel_s
        self.clock = Clock()
        self.steps = 0

    def step(self) -> None:
        """A training step, as the host sees it: it launches and returns."""
        self.steps += 1
        self.clock.launch(1.0 if self.steps == 1 else 1e-4, self.kernel_s)

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Python's clocks and CUDA's waits are this device's."""
        clock = self.clock

        class Event:
            def __init__(self, *_: Any, **__: Any) -> None:
                self.at = 0.0

            def record(self, *_: Any) -> None:
                self.at = clock.end

            def synchronize(self) -> None:
                clock.now = max(clock.now, self.at)

            def elapsed_time(self, other: Any) -> float:
                return 1e3 * (float(other.at) - self.at)

        clocks: dict[str, Any] = {}
        for name in ("perf_counter", "monotonic", "time", "process_time"):
            clocks |= {name: lambda: clock.now, f"{name}_ns": lambda: int(1e9 * clock.now)}
        cuda: dict[str, Any] = {"synchronize": clock.wait, "Event": Event, "is_available": lambda: True}
        with (
            mock.patch.multiple(time, **clocks),
            mock.patch.multiple(torch.cuda, **cuda),
            mock.patch.object(torch.accelerator, "synchronize", clock.wait),
        ):
            yield


# ---------------------------------------------------------------- the capstone


def levers(main_of: Callable[[], Any]) -> dict[str, bool]:
    """Trains an epoch with the `main(epochs)` of a script that `main_of` runs; whether each lever was in effect.

    What a script enables only where a machine gains by it is enabled here: autocast, in bfloat16.
    """
    kinds: set[torch.dtype] = set()
    compiled: list[Any] = []
    autocast, batches = torch.autocast.__init__, DataLoader.__iter__

    def enabled(context: Any, *_: Any, **__: Any) -> None:
        autocast(context, "cpu", torch.bfloat16)

    def seen(loader: Any) -> Iterator[Any]:
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
        mock.patch.object(nn.Module, "compile", as_it_is),
        mock.patch.object(torch.cuda, "is_available", return_value=False),
        mock.patch.object(Image, "open", side_effect=Image.open) as decoded,
        contextlib.redirect_stdout(io.StringIO()),
    ):
        main = main_of()
        computed = {forward.dtype for forward in forwards(lambda: main(1))}
    return {
        "workers decode": not decoded.called,
        "batches are uint8": kinds == {torch.uint8},
        "layers compute in 16 bits": torch.bfloat16 in computed,
        "compiled": bool(compiled),
    }
