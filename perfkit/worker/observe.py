"""The one way into a training step: its phases, batches, copies and outputs.

Phases are seen through `train.observer`, which each phase of a step calls. Outputs are seen by a hook on the
outermost module, which neither torch.compile nor DistributedDataParallel notices: nothing is compiled again.
Batches are seen on their way through the iterator that the step reads from. The program stays as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from perfkit import old_train as train
from perfkit import parts
from perfkit.old_train import DevicePrefetcher, Training
from perfkit.recipe import Recipe
from perfkit.worker.loader import Source
from perfkit.worker.messages import CompileCounters

OnPhase = Callable[[str, AbstractContextManager[Any]], AbstractContextManager[Any]]
"""Called with the name of a phase and the named range that the program opens for it; entered around it."""


@contextlib.contextmanager
def phases(on_phase: OnPhase) -> Iterator[None]:
    """Enters what `on_phase` returns around each phase of the steps that are taken meanwhile."""

    @contextlib.contextmanager
    def observer(name: str, named_range: AbstractContextManager[Any]) -> Iterator[None]:
        with on_phase(name, named_range), named_range:
            yield

    before, train.observer = train.observer, observer
    try:
        yield
    finally:
        train.observer = before


@contextlib.contextmanager
def outputs(model: nn.Module, on_output: Callable[[Any, Any], None]) -> Iterator[None]:
    """Calls `on_output` with what goes into the model and what comes out, each time it is computed."""
    hook = model.register_forward_hook(lambda _, inputs, output: on_output(inputs[0], output))
    try:
        yield
    finally:
        hook.remove()


def batches(source: Iterator[Any], on_batch: Callable[[Any], None]) -> Iterator[Any]:
    """The batches of a source; calls `on_batch` with each just before it is handed on."""
    for batch in source:
        on_batch(batch)
        yield batch


def inner_model(model: Any) -> Any:
    """The workload's own module, inside of what compiles or distributes it."""
    model = getattr(model, "_orig_mod", model)
    return model.module if isinstance(model, DistributedDataParallel) else model


def is_compiled(model: Any) -> bool:
    """Whether torch.compile has wrapped the model."""
    return isinstance(model, torch._dynamo.eval_frame.OptimizedModule)


def is_resident(loader: Any) -> bool:
    """Whether the whole data set lies on the device; a script has a class of that name of its own."""
    return type(loader).__name__ == "ResidentLoader"


def compile_counters() -> CompileCounters:
    """What torch.compile has done in this process."""
    from torch._dynamo.utils import counters

    return CompileCounters(
        graphs=int(counters["stats"]["unique_graphs"]),
        breaks=int(sum(counters["graph_break"].values())),
        cache_hits=int(counters["inductor"]["fxgraph_cache_hit"]),
        cache_misses=int(counters["inductor"]["fxgraph_cache_miss"]),
    )


@dataclass
class ObservedStep:
    """One optimizer step and all that was seen of it."""

    training: Training
    batch: Any = None
    """The last one, as the loader hands it over."""
    batches_pulled: int = 0
    prefetches: bool = False
    """Whether the next batch is copied beside the step."""
    inputs: Any = None
    """As the model takes them."""
    outputs: Any = None
    """The logits: the model's output, or the first tensor of it."""
    copies: list[dict[str, Any]] = field(default_factory=list)
    """Keyword arguments of the `Tensor.to` calls that brought batches to the device."""
    copy_streams: list[int | None] = field(default_factory=list)
    """The CUDA stream that was current during each copy; None on other devices."""
    compute_stream: int | None = None
    """The one that was current during the forward pass."""
    recorded: int = 0
    """Tensors that were protected by `record_stream` while a batch was handed over."""
    ranges: list[str] = field(default_factory=list)
    """The named ranges that the step opened."""
    averaged: list[bool] = field(default_factory=list)
    """Of each backward: whether ranks averaged their gradients."""
    block_calls: int = 0
    """How often the first block of the model was computed; 0 where that cannot be counted."""
    optimizer_steps: int = 0
    iterator: Any = None
    """The loader's own, where it has worker processes."""
    counters: CompileCounters = field(default_factory=compile_counters)
    recompiles: int = 0
    """Graphs that were compiled after the first step: there should be none."""

    @property
    def recipe(self) -> Recipe:
        """The recipe that should be in effect."""
        recipe: Recipe = self.training.recipe
        return recipe

    @property
    def ddp(self) -> DistributedDataParallel | None:
        """The module that distributes the model; None with one rank."""
        model = getattr(self.training.model, "_orig_mod", self.training.model)
        return model if isinstance(model, DistributedDataParallel) else None

    def on_batch(self, batch: Any) -> None:
        """Notes a batch of the loader."""
        self.batch = batch
        self.batches_pulled += 1

    def on_output(self, inputs: Any, outputs: Any) -> None:
        """Notes what the model got and gave."""
        while not isinstance(outputs, torch.Tensor):
            outputs = next(iter(outputs.values() if isinstance(outputs, dict) else outputs))
        self.inputs, self.outputs = inputs, outputs

    def on_phase(self, name: str, named_range: AbstractContextManager[Any]) -> AbstractContextManager[Any]:
        """Notes the named range, which gradients are averaged, how and on which stream batches are copied."""
        if not isinstance(named_range, nullcontext):
            self.ranges.append(name)
        if name == "backward":
            self.averaged.append(getattr(self.training.model, "require_backward_grad_sync", True))
        if name == "forward":
            self.compute_stream = _current_stream(self.training.device)
        if name == "copy":
            self.copy_streams.append(_current_stream(self.training.device))
            return _Calls(torch.Tensor.to, self.copies.append)
        if name == "data":
            return _Calls(torch.Tensor.record_stream, lambda _: self.count("recorded"))
        return nullcontext()

    def count(self, name: str) -> None:
        """Adds 1 to a count."""
        setattr(self, name, getattr(self, name) + 1)


def _current_stream(device: torch.device) -> int | None:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else None


class _Calls(TorchFunctionMode):
    """Passes on the keyword arguments of every call of one method of tensors."""

    def __init__(self, method: Any, on_call: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self.method = method
        self.on_call = on_call

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is self.method:
            self.on_call(dict(kwargs or {}))
        return func(*args, **(kwargs or {}))


def observe_step(training: Training, source: Source, first_graphs: int = 0) -> ObservedStep:
    """Takes one optimizer step and watches it.

    Args:
        training: what trains.
        source: the endless host batches.
        first_graphs: graphs that torch.compile had made after the first step.
    """
    step = ObservedStep(training)
    device_batches = training.batches(batches(source, step.on_batch))
    hooks = [training.optimizer.register_step_post_hook(lambda *_: step.count("optimizer_steps"))]
    if not is_compiled(training.model):  # a hook inside of the model would compile it again
        block = parts.blocks(inner_model(training.model))[0]
        leaf = next(part for part in block.modules() if not [*part.children()])
        hooks.append(leaf.register_forward_pre_hook(lambda *_: step.count("block_calls")))
    try:
        with phases(step.on_phase), outputs(training.model, step.on_output):
            training.step(device_batches)
    finally:
        for hook in hooks:
            hook.remove()
    step.iterator = source.iterator
    step.prefetches = isinstance(device_batches, DevicePrefetcher)
    # A prefetcher is one batch ahead: that batch was pulled, but not yet trained on.
    step.batches_pulled -= step.prefetches
    step.counters = compile_counters()
    step.recompiles = step.counters.graphs - first_graphs
    return step
