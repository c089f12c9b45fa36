"""Records one training step: it runs on tensors without numbers and is taken down."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import msgspec
import torch
from torch import nn

from perfkit import old_train as train
from perfkit.recipe import Recipe
from perfkit.simulate import describe, device
from perfkit.simulate.device import NAME
from perfkit.simulate.recording import Recording, refuse_module
from perfkit.simulate.step import Phase, Step, Tensor

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


def without_numbers() -> Any:
    """Leaves weights as they are where a model would draw them at random: it takes seconds for large ones."""
    names = ("normal_", "uniform_", "erfinv_", "exponential_")
    same: dict[str, Any] = dict.fromkeys(names, lambda tensor, *_, **__: tensor)
    return mock.patch.multiple(torch.Tensor, **same)


def of_training(workload: Any, recipe: Recipe, seed: int = 0) -> Step:
    """One steady training step of `perfkit.train` under a recipe.

    Raises:
        Unpredictable: it needs the values of tensors, or something that is not modelled.
    """
    recording = Recording()
    recording.pinned = recipe.pin_memory
    simulated = device.register()
    compiling = _compiling(recording) if recipe.compile else nullcontext()
    with device.recording(recording), _phases(recording), compiling:
        training = train.Training(_Shapes(workload), recipe, simulated, seed)
        loader: Any = training.loader
        samples = loader.dataset
        one = samples.__getitems__([0]) if recipe.batched_fetch else [samples[0]]
        source = recording.fetching(repeated(loader.collate_fn(one), recipe.batch_size))
        batches: Any = training.batches(source)
        if recipe.device_prefetch:
            batches.fetch()
        step = _recorded(
            recording, lambda: training.step(batches), training.model, training.optimizer,
            recipe.batch_size * recipe.accumulation,
        )  # fmt: skip
    if recipe.compile and recipe.compile_mode == "reduce-overhead":
        step = msgspec.structs.replace(step, graph=True)
    return step


def _compiling(recording: Recording) -> Any:
    from perfkit.simulate import fusion  # importing torch's compiler takes seconds

    return fusion.compiling(recording.graph)


def _phases(recording: Recording) -> Any:
    @contextmanager
    def observer(name: str, named_range: Any) -> Iterator[None]:
        recording.phase = _PHASES.get(name, recording.phase)
        with named_range:
            yield
        if name == "copy":
            recording.phase = "prepare"

    return mock.patch.object(train, "observer", observer)


def _recorded(
    recording: Recording, step: Callable[[], Any], model: nn.Module, optimizer: Any, samples: int
) -> Step:
    """Records a steady step, after what only the first one does.

    Args:
        recording: of what was made so far.
        step: takes one.
        model: what trains.
        optimizer: of its weights; None for inference.
        samples: in a step.
    """

    def before_update(used: Any, *_: Any) -> None:
        weights = [weight for group in used.param_groups for weight in group["params"]]
        recording.name([weight.grad for weight in weights], "gradients")

    if optimizer:
        optimizer.register_step_pre_hook(before_update)
    for module in model.modules():
        refuse_module(module)
    compiled = isinstance(model, torch._dynamo.OptimizedModule)
    # Inside of a compiled model there are no calls of modules, and a hook would be compiled with it.
    with nullcontext() if compiled else recording.modules(model):
        step()
        gc.collect()  # or what came before would be given back in the recorded step
        recording.start(model, optimizer)
        step()
        events, resident = recording.stop()
    return Step(
        events=events, resident=resident, samples=samples, compiled=compiled, torch=str(torch.__version__),
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        fp32_precision="tf32" if torch.backends.cudnn.conv.fp32_precision == "tf32" else "ieee",
        matmul_precision="tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "ieee",
    )  # fmt: skip


def of_model(
    make_model: Callable[[], nn.Module],
    inputs: Sequence[Tensor],
    *,
    amp: str = "off",
    channels_last: bool = False,
    train: bool = True,
    compiled: bool = False,
) -> Step:
    """The operators of one step of a model whose inputs are already on the device.

    It trains with SGD with momentum and cross entropy of the first tensor that the model gives.

    Args:
        make_model: gives the model, on the CPU; its weights are not used.
        inputs: shapes and dtypes of what it is called with.
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
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9) if train else None
        scaler = torch.amp.GradScaler(NAME, enabled=train and amp == "fp16")
        casting = {"off": nullcontext, "fp16": torch.autocast, "bf16": torch.autocast}[amp]
        dtypes = {"off": (), "fp16": (NAME, torch.float16), "bf16": (NAME, torch.bfloat16)}[amp]

        def step() -> None:
            recording.phase = "forward"
            with casting(*dtypes), torch.set_grad_enabled(train):
                outputs = model(*given)
                if not optimizer:
                    return
                loss = _cross_entropy(outputs)
            recording.phase = "backward"
            scaler.scale(loss).backward()
            recording.phase = "optimizer"
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

        return _recorded(recording, step, model, optimizer, inputs[0].shape[0])


def _given(wanted: Tensor, simulated: torch.device, channels_last: bool) -> torch.Tensor:
    tensor = torch.empty(wanted.shape, dtype=getattr(torch, wanted.dtype), device=simulated)
    return tensor.to(memory_format=torch.channels_last) if channels_last and tensor.dim() == 4 else tensor


def _cross_entropy(outputs: Any) -> torch.Tensor:
    logits = next(describe.tensors(getattr(outputs, "logits", outputs)))
    logits = logits.flatten(0, -2)
    targets = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    return nn.functional.cross_entropy(logits, targets)
