"""What is seen of a step is what happened in it, and watching leaves no trace in the program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from perfkit.program import train
from perfkit.program.recipe import Recipe
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
    functions = (train.observer, train.forward, train.to_device, train.span, torch.Tensor.backward)
    watched = harness(Blocks())
    members = dict(vars(watched.training))
    memory.measure(watched)
    step_of(watched)
    with pytest.raises(ZeroDivisionError), observe.phases(lambda *_: 1 / 0):  # type: ignore[arg-type, return-value]
        watched.training.step(watched.batches)
    assert (train.observer, train.forward, train.to_device, train.span, torch.Tensor.backward) == functions
    assert vars(watched.training) == members
    model = watched.training.model
    hooks = [h for part in model.modules() for h in (*part._forward_hooks, *part._forward_pre_hooks)]
    assert hooks == []


def test_a_step_is_seen_as_it_was_taken() -> None:
    step = step_of(harness(Blocks(), accumulation=2, nvtx_ranges=True, non_blocking=True))
    assert (step.batches_pulled, step.optimizer_steps, step.block_calls) == (2, 1, 2)
    assert step.averaged == [True, True]
    assert set(step.ranges) == {"step", "data", "copy", "forward", "backward", "optimizer"}
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
