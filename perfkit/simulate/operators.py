"""Records one training step: it runs on tensors without numbers and is taken down."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import msgspec
import torch
from torch import nn

from perfkit.program import train
from perfkit.program.recipe import Recipe
from perfkit.simulate import describe, device
from perfkit.simulate.device import NAME
from perfkit.simulate.recording import Recording, refuse_module
from perfkit.simulate.step import Phase, Step, Tensor, Wait

_PHASES: dict[str, Phase] = {
    "copy": "copy", "data": "prepare", "forward": "forward", "backward": "backward", "optimizer": "optimizer",
}  # fmt: skip


# ---------------------------------------------------------------- one step


class OneSample:
    """A data set that fetches its first sample only: all have the same shape, and values do not matter."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        if hasattr(dataset, "__getitems__"):
            self.__getitems__ = self._repeat  # data loaders ask whether there is such a method

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[0]

    def _repeat(self, indices: list[int]) -> Any:
        return repeated(self.dataset.__getitems__([0]), len(indices))


class _Shapes:
    """A workload whose data are the first sample, over and over."""

    def __init__(self, workload: Any) -> None:
        self._workload = workload

    def __getattr__(self, name: str) -> Any:
        return getattr(self._workload, name)

    def dataset(self, recipe: Any) -> Any:
        return OneSample(self._workload.dataset(recipe))

    def model(self) -> nn.Module:
        with without_numbers():
            model: nn.Module = self._workload.model()
        return model


def repeated(batch: Any, count: int) -> Any:
    """A batch of one sample as one of `count`, without memory for it."""
    return torch.utils._pytree.tree_map(
        lambda leaf: leaf.expand(count, *leaf.shape[1:]) if isinstance(leaf, torch.Tensor) else leaf, batch
    )


@contextmanager
def without_numbers() -> Iterator[None]:
    """Leaves weights as they are where a model would draw them at random: it takes seconds for large ones."""
    names = ("normal_", "uniform_", "erfinv_", "exponential_", "trunc_normal_")
    kept = {name: getattr(torch.Tensor, name) for name in names if hasattr(torch.Tensor, name)}
    for name in kept:
        setattr(torch.Tensor, name, lambda tensor, *_, **__: tensor)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(torch.Tensor, name, method)


def of_training(workload: Any, recipe: Recipe, seed: int = 0) -> Step:
    """One steady training step of `perfkit.program.train` under a recipe.

    Raises:
        Unpredictable: it needs the values of tensors, or something that is not modelled.
    """
    if recipe.zero_grad_set_to_none and not recipe.compile and not recipe.device_dataset:
        with contextlib.suppress(_SomeUnused):
            return _of_training(workload, recipe, seed, whole_step_first=False)
    return _of_training(workload, recipe, seed, whole_step_first=True)


def _of_training(workload: Any, recipe: Recipe, seed: int, whole_step_first: bool) -> Step:
    recording = Recording()
    recording.pinned = recipe.pin_memory
    simulated = device.register()
    compiling = _compiling(recording) if recipe.compile else nullcontext()
    with device.recording(recording), _phases(recording), compiling:
        training = train.Training(_Shapes(workload), recipe.replace(log_every=0), simulated, seed)
        loader: Any = training.loader
        if recipe.device_dataset:
            source = train.epochs(loader)
        else:
            samples = loader.dataset
            one = samples.__getitems__([0]) if recipe.batched_fetch else [samples[0]]
            source = recording.fetching(repeated(loader.collate_fn(one), recipe.batch_size))
        batches: Any = training.batches(source)
        if recipe.device_prefetch:
            batches.fetch()

        def update() -> None:
            if recipe.amp == "fp16":
                training.scaler.scale(torch.empty((), device=simulated))
            training.update()

        step = _recorded(
            recording, lambda: training.step(batches), training.model, training.optimizer,
            recipe.batch_size * recipe.accumulation, update=None if whole_step_first else update,
        )  # fmt: skip
    if recipe.compile and recipe.compile_mode == "reduce-overhead":
        step = msgspec.structs.replace(step, graph=True)
    if recipe.log_every:
        step.events.append(Wait("loss.item()", every=recipe.log_every))
    return step


def _compiling(recording: Recording) -> Any:
    from perfkit.simulate import fusion  # importing torch's compiler takes seconds

    return fusion.compiling(recording.graph)


@contextmanager
def _phases(recording: Recording) -> Iterator[None]:
    @contextmanager
    def observer(name: str, named_range: Any) -> Iterator[None]:
        recording.phase = _PHASES.get(name, recording.phase)
        with named_range:
            yield
        if name == "copy":
            recording.phase = "prepare"

    before, train.observer = train.observer, observer
    try:
        yield
    finally:
        train.observer = before


def _recorded(
    recording: Recording, step: Callable[[], Any], model: nn.Module, optimizer: Any, samples: int, *,
    update: Callable[[], None] | None = None,
) -> Step:  # fmt: skip
    """Records a steady step, after what only the first one does.

    Args:
        recording: of what was made so far.
        step: takes one.
        model: what trains.
        optimizer: of its weights; None for inference.
        samples: in a step.
        update: the optimizer's part of a step, which makes its state. It is enough for most models and much
            faster than a whole step; None takes a whole step first.
    """
    gradients: list[bool] = []

    def before_update(used: Any, *_: Any) -> None:
        weights = [weight for group in used.param_groups for weight in group["params"]]
        recording.name([weight.grad for weight in weights], "gradients")
        gradients[:] = [weight.grad is not None for weight in weights]

    if optimizer:
        optimizer.register_step_pre_hook(before_update)
    for module in model.modules():
        refuse_module(module)
    compiled = isinstance(model, torch._dynamo.OptimizedModule)
    # Inside of a compiled model there are no calls of modules, and a hook would be compiled with it.
    with nullcontext() if compiled else recording.modules(model):
        if update:
            for weight in model.parameters():
                weight.grad = torch.empty_like(weight) if weight.requires_grad else None
            update()
        else:
            step()
        gc.collect()  # or what came before would be given back in the recorded step
        recording.start(model, optimizer)
        step()
        events, resident = recording.stop()
    if update and not all(gradients):
        raise _SomeUnused
    return Step(
        events=events, resident=resident, resident_bytes=sum(block.nbytes for block in resident),
        samples=samples, compiled=compiled, torch=str(torch.__version__),
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        fp32_precision="tf32" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "ieee",
        matmul_precision="tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee",
    )  # fmt: skip


class _SomeUnused(Exception):
    """Some weights have no gradient: only a whole step shows which."""


def of_model(
    make_model: Callable[[], nn.Module],
    inputs: Sequence[Tensor],
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    *,
    amp: str = "off",
    channels_last: bool = False,
    train: bool = True,
    compiled: bool = False,
) -> Step:
    """The operators of one step of a model whose inputs are already on the device.

    Args:
        make_model: gives the model, on the CPU; its weights are not used.
        inputs: shapes and dtypes of what it is called with.
        loss: of its outputs, a scalar; if None, cross entropy with the first tensor of them.
        optimizer: of its parameters; SGD with momentum if None.
        amp: `off`, `fp16` (training: with gradient scaling) or `bf16`.
        channels_last: of the model and its four-dimensional inputs.
        train: forward, backward and optimizer step; else forward alone, without gradients.
        compiled: as torch.compile would fuse it.

    Raises:
        Unpredictable: it needs the values of tensors, or layers that are not modelled.
    """
    recording = Recording()
    simulated = device.register()
    compiling = _compiling(recording) if compiled else nullcontext()
    with device.recording(recording), compiling:
        with without_numbers():
            model: Any = make_model().train(train)
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
        model = model.to(simulated)
        model = torch.compile(model) if compiled else model
        given = [_given(one, simulated, channels_last) for one in inputs]
        parameters = [*model.parameters()]
        optimizing: Any = None
        if train:
            optimizing = (optimizer or (lambda weights: torch.optim.SGD(weights, lr=0.01, momentum=0.9)))(
                parameters
            )
        scaler = torch.amp.GradScaler(NAME) if train and amp == "fp16" else None
        casting = {"off": nullcontext, "fp16": torch.autocast, "bf16": torch.autocast}[amp]
        dtypes = {"off": (), "fp16": (NAME, torch.float16), "bf16": (NAME, torch.bfloat16)}[amp]

        def step() -> None:
            recording.phase = "forward"
            with casting(*dtypes), torch.set_grad_enabled(train):
                outputs = model(*given)
                if not train:
                    return
                found = (loss or _cross_entropy)(outputs)
            recording.phase = "backward"
            (scaler.scale(found) if scaler else found).backward()
            recording.phase = "optimizer"
            scaler.step(optimizing) if scaler else optimizing.step()
            if scaler:
                scaler.update()
            optimizing.zero_grad()

        return _recorded(recording, step, model, optimizing, inputs[0].shape[0])


def _given(wanted: Tensor, simulated: torch.device, channels_last: bool) -> torch.Tensor:
    tensor = torch.empty(wanted.shape, dtype=getattr(torch, wanted.dtype), device=simulated)
    last = wanted.layout == "channels_last" or (channels_last and tensor.dim() == 4)
    return tensor.to(memory_format=torch.channels_last) if last else tensor


def _cross_entropy(outputs: Any) -> torch.Tensor:
    logits = next(describe.tensors(getattr(outputs, "logits", outputs)))
    logits = logits.flatten(0, -2)
    targets = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    return nn.functional.cross_entropy(logits, targets)
