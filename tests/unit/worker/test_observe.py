"""What is seen of a step is what happened in it, and watching leaves no trace in the program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perfkit import old_train as train
from perfkit.recipe import Recipe
from perfkit.worker import memory, observe
from perfkit.worker.harness import Harness
from tests.support.toy import Blocks, Toy

CPU = torch.device("cpu")


def harness(workload: Any = None, **switches: Any) -> Harness:
    return Harness(train.Training(workload or Toy(), Recipe(**{"batch_size": 8, **switches}), CPU))


def step_of(watched: Harness) -> observe.ObservedStep:
    return observe.observe_step(watched.training, watched.source)


@pytest.mark.parametrize("accumulation", [1, 3])
def test_phases_are_seen_in_order_around_what_they_name(accumulation: int) -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def on_phase(name: str, named_range: object) -> Iterator[None]:
        seen.append(name)
        yield
        seen.append(f"end of {name}")

    watched = harness(accumulation=accumulation)
    with observe.phases(on_phase):
        watched.training.step(watched.batches)
    batch = ["data", "copy", "end of copy", "end of data", "forward", "end of forward", "backward"]
    once = [*batch, "end of backward"] * accumulation
    assert seen == ["step", *once, "optimizer", "end of optimizer", "end of step"]
    watched.training.step(watched.batches)
    assert len(seen) == len(once) + 4, "nothing is seen after watching has ended"


def test_after_watching_the_program_is_as_it_was() -> None:
    functions = (train.observer, train.forward, train.to_device, torch.Tensor.backward)
    watched = harness(Blocks())
    members = dict(vars(watched.training))
    memory.measure(watched)
    step_of(watched)
    with pytest.raises(ZeroDivisionError), observe.phases(lambda *_: 1 / 0):  # type: ignore[arg-type, return-value]
        watched.training.step(watched.batches)
    assert (train.observer, train.forward, train.to_device, torch.Tensor.backward) == functions
    assert vars(watched.training) == members
    model = watched.training.model
    hooks = [h for part in model.modules() for h in (*part._forward_hooks, *part._forward_pre_hooks)]
    assert hooks == []


def test_a_step_is_seen_as_it_was_taken() -> None:
    step = step_of(harness(Blocks(), accumulation=2, non_blocking=True))
    assert (step.batches_pulled, step.optimizer_steps, step.block_calls) == (2, 1, 2)
    assert step.averaged == [True, True]
    assert step.copies == [{"non_blocking": True}] * 4
    assert step.inputs.shape == (8, 16)
    assert step.outputs.shape == (8, 2)
    assert step_of(harness(Blocks())).ranges == []


def test_which_backward_averages_is_read_from_the_model() -> None:
    """A stand-in for DistributedDataParallel, which needs ranks."""
    watched = harness(accumulation=3, no_sync=True)

    class Model(torch.nn.Sequential):
        require_backward_grad_sync = True

        @contextlib.contextmanager
        def no_sync(self) -> Iterator[None]:
            self.require_backward_grad_sync = False
            yield
            self.require_backward_grad_sync = True

    watched.training.model = Model(*watched.training.model)
    assert step_of(watched).averaged == [False, False, True]


def test_watching_compiles_nothing_again() -> None:
    torch._dynamo.reset()
    watched = harness()
    watched.training.model = torch.compile(watched.training.model, backend="eager")
    watched.training.step(watched.batches)
    graphs = observe.compile_counters().graphs
    step = observe.observe_step(watched.training, watched.source, first_graphs=graphs)
    assert step.outputs.shape == (8, 2)
    watched.training.step(watched.batches)
    assert (step.recompiles, observe.compile_counters().graphs) == (0, graphs)


class FakeCuda:
    """The parts of `torch.cuda` that copy and prefetch use; streams are numbers, 0 the default one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current = 0
        self.recorded: list[int] = []

        def record_stream(tensor: torch.Tensor, stream: Any) -> None:
            if torch.overrides._is_torch_function_mode_enabled():  # as a method of torch's own would
                torch.overrides.handle_torch_function(record_stream, (tensor,), tensor, stream)
            else:
                self.recorded.append(stream.cuda_stream)

        monkeypatch.setattr(torch.cuda, "Stream", lambda device: self.stream(7))
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: self.stream(self.current))
        monkeypatch.setattr(torch.cuda, "stream", self.entered)
        monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)

    def stream(self, number: int) -> Any:
        return SimpleNamespace(cuda_stream=number, wait_stream=lambda other: None)

    @contextlib.contextmanager
    def entered(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream.cuda_stream
        yield
        self.current = before


@pytest.mark.parametrize("prefetch", [True, False])
def test_copies_on_a_stream_of_their_own_are_seen(prefetch: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    monkeypatch.setattr(observe, "_current_stream", lambda device: cuda.current)
    step = step_of(harness(pin_memory=prefetch, device_prefetch=prefetch))
    assert step.prefetches is prefetch
    assert set(step.copy_streams) == ({7} if prefetch else {0})
    assert step.compute_stream == 0
    assert (step.recorded, cuda.recorded) == ((2, [0, 0]) if prefetch else (0, []))
