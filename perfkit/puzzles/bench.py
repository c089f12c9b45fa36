"""What the checks of a puzzle use: plain training to compare with, and what can be seen of a call.

Checks are Python in the puzzle's file (`data/puzzles/`), run by `worker.judge`. They say what is wrong by
`require` and `same`, with one sentence for the learner. Devices that are not there: `worker.bench_devices`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import Dataset

from perfkit.worker.syncs import detect_syncs


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


# ---------------------------------------------------------------- data sets


class Numbers(Dataset[Any]):
    """Samples that say who fetched them: the index, and the process."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[int, int]:
        return index, os.getpid()


class Noise(Dataset[Any]):
    """Samples drawn from a generator of the data set's own, as many augmentations are."""

    def __init__(self, length: int) -> None:
        self.length, self.rng = length, np.random.default_rng(0)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> float:
        return float(self.rng.random())


# ---------------------------------------------------------------- training


def network(seed: int = 0, width: int = 32) -> nn.Sequential:
    """A small classifier: 16 inputs, 4 classes."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, width), nn.ReLU(), nn.Linear(width, 4))


def data(batches: int = 4, size: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Random batches: inputs float32[size, 16], targets int64[size]; others each time."""
    generator = torch.Generator().manual_seed(time.time_ns() % 2**31)
    return [
        (torch.randn(size, 16, generator=generator), torch.randint(4, (size,), generator=generator))
        for _ in range(batches)
    ]


def plain_step(model: nn.Module, optimizer: Any, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Forward, backward, update, and the gradients are cleared."""
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def plain_loop(model: nn.Module, optimizer: Any, batches: Iterable[Any]) -> list[torch.Tensor]:
    """The loss of each step."""
    return [plain_step(model, optimizer, inputs, targets) for inputs, targets in batches]


@dataclass
class Trained:
    """What one side did."""

    result: Any
    model: nn.Module
    optimizer: Any
    seen: list[torch.Tensor] = field(default_factory=list)
    """What the model got, call by call."""
    updates: int = 0
    """Steps of the optimizer."""

    @property
    def weights(self) -> list[torch.Tensor]:
        """Copies of its parameters."""
        return [weight.detach().clone() for weight in self.model.parameters()]


def train(
    loop: Callable[..., Any], batches: Iterable[Any], *more: Any,
    optimizer: Callable[..., Any] = lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    model: nn.Module | None = None,
) -> Trained:  # fmt: skip
    """Calls `loop(model, optimizer, batches, *more)` and watches it."""
    model = model or network()
    side = Trained(None, model, optimizer(model.parameters()))
    with contextlib.ExitStack() as hooks:
        hook = model.register_forward_pre_hook(lambda _, given: side.seen.append(given[0].detach().clone()))
        hooks.callback(hook.remove)
        hook = side.optimizer.register_step_post_hook(lambda *_: setattr(side, "updates", side.updates + 1))
        hooks.callback(hook.remove)
        side.result = loop(model, side.optimizer, batches, *more)
    return side


def trains_the_same(loop: Callable[..., Any], *more: Any, batches: list[Any] | None = None) -> Trained:
    """Trains with the learner's loop and with the plain one on the same batches, and compares them.

    Args:
        loop: `loop(model, optimizer, batches, *more)`.
        more: further arguments of the loop.
        batches: random ones if None.

    Raises:
        Wrong: a batch was left out or used twice, samples are missing, or the weights differ.
    """
    batches = batches or data(6)
    own, plain = train(loop, iter(batches), *more), train(plain_loop, batches)
    compare(own, plain)
    return own


def compare(own: Trained, plain: Trained) -> None:
    """The same samples in the same order, as many updates, the same weights.

    Raises:
        Wrong: they differ.
    """
    require(own.seen, "The model was never called: every batch has to go through it")
    samples, expected = sum(map(len, own.seen)), sum(map(len, plain.seen))
    require(samples == expected, f"The model saw {samples} samples and should see {expected}: leave none out")
    same(
        torch.cat(own.seen).float(), torch.cat(plain.seen).float(),
        "The model did not see the batches that it was given, in their order: is one used twice?",
    )  # fmt: skip
    require(own.updates, "The optimizer never made a step")
    require(
        own.updates == plain.updates,
        f"The optimizer made {own.updates} steps and should make {plain.updates}",
    )
    start = [weight.detach() for weight in network().parameters()]
    require(
        not all(torch.equal(*pair) for pair in zip(own.weights, start, strict=False)),
        "Nothing was learnt: the weights are as at the start. Is there a backward pass from the loss?",
    )
    same(
        own.weights, plain.weights, rtol=1e-4, atol=1e-6,
        sentence="It trains differently: the weights are not those of the plain loop on the same batches",
    )  # fmt: skip


def waits(call: Callable[[], Any]) -> list[str]:
    """The lines of the answer that would make the host wait for a GPU: one entry for each wait or copy."""
    with detect_syncs() as syncs:
        call()
    return [place.call for place in syncs.sorted() for _ in range(place.count)]


def operators(call: Callable[[], Any]) -> list[str]:
    """The operators of torch that a call dispatches, backward included."""
    names: list[str] = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            names.append(func.name())
            return func(*args, **(kwargs or {}))

    with Names():  # type: ignore[no-untyped-call]  # torch's
        call()
    return names


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

    average.__annotations__.clear()  # DDP takes no annotations that are text
    with tempfile.TemporaryDirectory() as folder:
        distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            parallel = DistributedDataParallel(model)
            parallel.register_comm_hook(None, average)
            yield parallel, averaged
        finally:
            distributed.destroy_process_group()
