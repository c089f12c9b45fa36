"""Records what one training step asks of a device: runs it on tensors without numbers and writes it down."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from perfkit.program import train
from perfkit.program.recipe import Recipe
from perfkit.simulate import device
from perfkit.simulate.device import NAME
from perfkit.simulate.step import (
    Allocate,
    Copy,
    Event,
    Fetch,
    MemoryKind,
    Operator,
    Phase,
    Step,
    Tensor,
    Wait,
)

aten = torch.ops.aten
_LAUNCH_NOTHING = {
    getattr(aten, name)
    for name in (
        "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "empty_permuted", "detach",
        "_unsafe_view", "as_strided_", "lift_fresh", "set_", "resize_", "_reshape_alias", "view",
        "_local_scalar_dense", "is_same_size", "sym_size", "record_stream",
    )
}  # fmt: skip
_NOT_THE_PROGRAM = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep, "<")
_PHASES: dict[str, Phase] = {
    "copy": "copy", "data": "prepare", "forward": "forward", "backward": "backward", "optimizer": "optimizer",
}  # fmt: skip


class Recording:
    """The events of a step. Memory is followed from the beginning, everything else while `on`."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.on = False
        self.phase: Phase = "prepare"
        self.pinned = False
        self._stream = 0
        self._modules: list[str] = []
        self._origin: dict[int, tuple[str, str]] = {}
        """Of the operators of the forward pass, by autograd's number: module and site."""
        self._blocks: dict[int, tuple[int, Any]] = {}
        """Of the storages that are alive: the number of the block, and what keeps the watch on it."""
        self._made: list[Allocate] = []
        """Every block, by number."""
        self._live: set[int] = set()
        self._resident: list[int] = []
        self._kinds: dict[int, MemoryKind] = {}
        """Of blocks whose kind is not decided by the phase in which they were made."""

    # ------------------------------------------------------------ what the device tells

    def operator(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """An operator was called."""
        if self.on and (operator := operator_of(func, args, kwargs, out, device.is_simulated)):
            module, site = self._place()
            place = {"phase": self.phase, "module": module, "site": site, "stream": self._stream}
            self.events.append(replace(operator, **place))
        self.hold(out)

    def copied(self, tensor: torch.Tensor, to: str, non_blocking: bool) -> None:
        """A tensor is copied between host and device."""
        self.hold(tensor)
        if not self.on:
            return
        nbytes = tensor.numel() * tensor.element_size()
        if to == "device":
            self.events.append(Copy(nbytes, "device", self.pinned, non_blocking, self._stream, _site()))
        else:
            self.events.append(Copy(nbytes, "host", False, non_blocking, self._stream, _site()))
            if not non_blocking:
                self.waits("copy to the host")

    def waits(self, what: str, streams: tuple[int, int] | None = None) -> None:
        """The host waits for the device, or one stream for another."""
        if self.on:
            self.events.append(Wait(what, streams, site=_site()))

    def fetching(self, batch: Any) -> Iterator[Any]:
        """The same batch, again and again, as from a loader."""
        while True:
            if self.on:
                self.events.append(Fetch(_site()))
            yield batch

    def stream(self, number: int) -> None:
        """Another stream is current from here on."""
        self._stream = number

    # ------------------------------------------------------------ memory

    def hold(self, tree: Any) -> None:
        """Follows the memory of tensors until torch gives it back."""
        for tensor in filter(device.is_simulated, device.tensors(tree)):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._blocks:
                continue
            block = Allocate(storage.nbytes(), _BORN_IN[self.phase], len(self._made))
            self._made.append(block)
            self._blocks[key] = (block.block, weakref.ref(storage, lambda _, key=key: self._free(key)))
            self._live.add(block.block)
            if self.on:
                self.events.append(block)

    def _free(self, key: int) -> None:
        number = self._blocks.pop(key)[0]
        block = self._made[number]
        self._live.discard(number)
        if block.kind == "activations" and self.phase == "forward":
            self._kinds.setdefault(number, "temporary")  # the forward pass itself no longer needs it
        if self.on:
            self.events.append(Allocate(-block.nbytes, block.kind, number))

    def name(self, tensors: Any, kind: MemoryKind) -> None:
        """Says what the memory of tensors is for."""
        for tensor in filter(device.is_simulated, device.tensors(tensors)):
            if found := self._blocks.get(tensor.untyped_storage()._cdata):
                self._kinds[found[0]] = kind

    def start(self, model: nn.Module, optimizer: Any) -> None:
        """Records from here on."""
        self.name([*model.parameters(), *model.buffers()], "parameters")
        self.name([weight.grad for weight in model.parameters()], "gradients")
        self.name([*optimizer.state.values()] if optimizer else [], "optimizer")
        self.events.clear()
        self._resident = sorted(self._live)
        self.on = True

    def stop(self) -> tuple[list[Event], list[Allocate]]:
        """The events, and the blocks that were in use before them, each with its kind."""
        self.on = False
        events = [self._final(event) if isinstance(event, Allocate) else event for event in self.events]
        return events, [self._final(self._made[number]) for number in self._resident]

    def _final(self, event: Allocate) -> Allocate:
        return Allocate(event.nbytes, self._kinds.get(event.block, event.kind), event.block)

    # ------------------------------------------------------------ where in the program

    def _place(self) -> tuple[str, str]:
        """Module and site; of an operator of backward, those of the forward operator that it belongs to."""
        node = torch._C._current_autograd_node()
        if node is not None and not self._modules:
            return self._origin.get(node._sequence_nr(), ("", ""))
        place = (self._modules[-1] if self._modules else "", _site())
        self._origin.setdefault(torch._C._autograd._get_sequence_nr() - 1, place)
        return place

    @contextmanager
    def modules(self, model: nn.Module) -> Iterator[None]:
        """Notes in which module of a model operators are called."""
        names = {module: name for name, module in model.named_modules()}

        def enter(module: nn.Module, inputs: Any) -> None:
            refuse_module(module)
            self._modules.append(names.get(module, self._modules[-1] if self._modules else ""))

        def leave(module: nn.Module, inputs: Any, outputs: Any) -> None:
            self._modules.pop()

        before = nn.modules.module.register_module_forward_pre_hook(enter)
        after = nn.modules.module.register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            self._modules.clear()


_BORN_IN: dict[Phase, MemoryKind] = {
    "copy": "inputs", "prepare": "inputs", "forward": "activations", "backward": "temporary",
    "optimizer": "temporary",
}  # fmt: skip


def refuse_module(module: nn.Module) -> None:
    """Raises Unpredictable for layers that a GPU computes with other operators than this device."""
    if getattr(module, "sparse", False):
        raise device.Unpredictable(
            f"its {type(module).__name__} layers have sparse gradients, which are not modelled"
        )
    if isinstance(module, nn.LSTM | nn.GRU | nn.RNN | nn.LSTMCell | nn.GRUCell):
        name = type(module).__name__
        raise device.Unpredictable(f"its {name} layers run in kernels of cuDNN that are not modelled")


def operator_of(
    func: Any, args: Any, kwargs: Any, out: Any, is_there: Callable[[torch.Tensor], bool]
) -> Operator | None:
    """A call of an operator, without its place; None if it launches no kernel on the device.

    Args:
        func: the operator.
        args: what it was called with.
        kwargs: the same, by name.
        out: what it returned.
        is_there: whether a tensor is on the device.
    """
    if func.overloadpacket in _LAUNCH_NOTHING or func.is_view:
        return None
    inputs, outputs = (list(filter(is_there, device.tensors(tree))) for tree in ((args, kwargs), out))
    if not (inputs or outputs):
        return None
    return Operator(
        _name(func), "forward", [*map(described, inputs)], [*map(described, outputs)],
        attributes(func, args, kwargs),
    )  # fmt: skip


def _name(func: Any) -> str:
    return f"{func.namespace}.{func.overloadpacket.__name__}"


def described(tensor: torch.Tensor) -> Tensor:
    """A tensor without its numbers."""
    contiguous = tensor.is_contiguous()
    layout = "contiguous" if contiguous else "channels_last" if device.is_channels_last(tensor) else "strided"
    return Tensor(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), layout)


def attributes(func: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments that are not tensors, by the names in the operator's schema."""
    given = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | dict(
        kwargs
    )
    plain = {name: value for name, value in given.items() if _is_plain(value)}
    return plain | ({"inplace": True} if func._schema.is_mutable else {})


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_plain, value))
    return isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))


def _site() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_NOT_THE_PROGRAM) and file != contextlib.__file__:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


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
    if recipe.compile:
        raise device.Unpredictable("torch.compile is not modelled yet")
    if recipe.zero_grad_set_to_none and not recipe.compile:
        with contextlib.suppress(_SomeUnused):
            return _of_training(workload, recipe, seed, whole_step_first=False)
    return _of_training(workload, recipe, seed, whole_step_first=True)


def _of_training(workload: Any, recipe: Recipe, seed: int, whole_step_first: bool) -> Step:
    recording = Recording()
    recording.pinned = recipe.pin_memory
    simulated = device.register()
    with device.recording(recording), _phases(recording):
        training = train.Training(_Shapes(workload), recipe.replace(log_every=0), simulated, seed)
        loader: Any = training.loader
        if recipe.device_dataset:
            source = train.epochs(loader)
        else:
            samples = loader.dataset
            one = samples.__getitems__([0]) if recipe.batched_fetch else [samples[0]]
            source = recording.fetching(repeated(loader.collate_fn(one), recipe.batch_size))
        batches = training.batches(source)
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
    if recipe.log_every:
        step.events.append(Wait("loss.item()", every=recipe.log_every))
    return step


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
    with recording.modules(model):
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
        samples=samples, torch=str(torch.__version__), cudnn_benchmark=torch.backends.cudnn.benchmark,
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
    if compiled:
        raise device.Unpredictable("torch.compile is not modelled yet")
    simulated = device.register()
    with device.recording(recording):
        with without_numbers():
            model: Any = make_model().train(train)
        if channels_last:
            model = model.to(memory_format=torch.channels_last)
        model = model.to(simulated)
        given = [_given(one, simulated, channels_last) for one in inputs]
        parameters = [*model.parameters()]
        optimizing = None
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
    logits = next(device.tensors(getattr(outputs, "logits", outputs)))
    targets = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    return nn.functional.cross_entropy(logits, targets)
