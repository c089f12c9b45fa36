"""One step of the training program, watched: what each switch does in it."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from perfkit.checkpointing import blocks
from perfkit.worker.checks import View, autocast_dtype, first_tensor
from perfkit.worker.device import compile_counters
from perfkit.worker.training import Training, distributed_model, inner_model, is_compiled


def observe_step(training: Training, first_graphs: int = 0) -> View:
    """Takes one optimizer step and watches it.

    A hook on the outermost module is noticed neither by torch.compile nor by DistributedDataParallel, so
    nothing is compiled again.

    Args:
        training: has taken its first step.
        first_graphs: graphs that torch.compile had made after that one.
    """
    view = View(
        device=training.device,
        loader=training.loader,
        iterator=training.iterator,
        model=training.model,
        optimizer=training.optimizer,
        scaler=training.scaler,
        prefetches=training.recipe.device_prefetch,
    )
    before = training.feed.count
    training.feed.keeps_last = True
    with _counted(training, view), _outputs(training.model, view), training.phases(_phases(training, view)):
        training.step()
    training.feed.keeps_last = False
    view.batch, training.feed.last = training.feed.last, None
    view.batches = training.feed.count - before
    if is_compiled(training.model):
        view.graphs = compile_counters()
        view.recompiles = view.graphs["graphs"] - first_graphs
    return view


@contextlib.contextmanager
def _outputs(model: nn.Module, view: View) -> Iterator[None]:
    def note(_: Any, inputs: Any, outputs: Any) -> None:
        view.inputs, view.outputs = inputs[0], first_tensor(outputs)
        view.autocast = autocast_dtype(view.device)

    hook = model.register_forward_hook(note)
    try:
        yield
    finally:
        hook.remove()


@contextlib.contextmanager
def _counted(training: Training, view: View) -> Iterator[None]:
    """Counts optimizer steps, and how often the first block of the model is computed."""

    def updated(*_: Any) -> None:
        view.updates += 1

    def computed(*_: Any) -> None:
        view.block_calls += 1

    hooks = [training.optimizer.register_step_post_hook(updated)]
    if not is_compiled(training.model):  # a hook inside of the model would compile it again
        block = blocks(inner_model(training.model))[0]
        leaf = next(part for part in block.modules() if not [*part.children()])
        hooks.append(leaf.register_forward_pre_hook(computed))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _phases(training: Training, view: View) -> Callable[[str], AbstractContextManager[Any]]:
    ddp = distributed_model(training.model)

    def on_phase(name: str) -> AbstractContextManager[Any]:
        if name == "backward":
            view.averaged.append(ddp is None or ddp.require_backward_grad_sync)
        if name == "forward":
            view.compute_stream = _current_stream(training.device)
        return _Copies(view) if name == "copy" else contextlib.nullcontext()

    return on_phase


def _current_stream(device: torch.device) -> int | None:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else None


class _Copies(TorchFunctionMode):
    """Notes how and on which stream a batch is copied."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.view = view

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to:
            self.view.copies.append(dict(kwargs or {}))
            self.view.copy_streams.append(_current_stream(self.view.device))
        return func(*args, **(kwargs or {}))
