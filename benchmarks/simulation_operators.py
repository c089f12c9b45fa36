"""Operators of timm's models under the conditions of its benchmark, for `benchmarks.fit_simulation`.

Needs timm. The conditions of its `benchmark.py` at the time of the figures: SGD with Nesterov momentum,
kernels for each parameter (foreach was not yet the default), gradients zeroed, no loss scaling, inputs on the
device.
"""

from __future__ import annotations

import gzip
import math
import sys
from pathlib import Path
from typing import Any

import msgspec
import torch

from perfkit.simulate import describe, device, operators
from perfkit.simulate.step import Operator, Step, Tensor
from perfkit.simulate.work import of_operator

Identified = tuple[int, Tensor]
"""A tensor, and the number of its storage."""


class Call(msgspec.Struct, frozen=True, array_like=True):
    """An operator with the storages that it reads and writes, so that an approximate fusion is possible."""

    operator: Operator
    inputs: list[Identified]
    outputs: list[Identified]


class _Calls:
    """A recorder of operators alone; keeps all tensors, so that no number of a storage is used twice."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.phase: Any = "forward"
        self._kept: list[Any] = []

    def operator(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self._kept.append((args, kwargs, out))
        operator = describe.operator_of(func, args, kwargs, out, device.is_simulated)
        if operator:
            operator = msgspec.structs.replace(operator, phase=self.phase)
            self.calls.append(Call(operator, _identified((args, kwargs)), _identified(out)))

    def copied(self, tensor: Any, to: str, non_blocking: bool) -> None:
        pass

    def waits(self, what: str, streams: Any = None) -> None:
        pass

    def stream(self, number: int) -> None:
        pass

    def hold(self, tree: Any) -> None:
        pass


def _identified(tree: Any) -> list[Identified]:
    tensors = filter(device.is_simulated, describe.tensors(tree))
    return [(tensor.untyped_storage()._cdata, describe.described(tensor)) for tensor in tensors]


def calls(
    model: str, batch_size: int, image: int, channels_last: bool, train: bool, cache: Path
) -> list[Call]:
    """The operators of one step of a timm model under AMP, from the cache if they are there."""
    layout = "nhwc" if channels_last else "nchw"
    path = cache / f"{'train' if train else 'infer'}-{model}-{batch_size}-{image}-{layout}.json.gz"
    if not path.exists():
        found = _recorded(model, batch_size, image, channels_last, train)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(msgspec.json.encode(found), 3))
    return msgspec.json.decode(gzip.decompress(path.read_bytes()), type=list[Call])


def attempt(*given: Any) -> list[Call]:
    """`calls`, or none where today's timm or the device without numbers cannot run the model."""
    try:
        return calls(*given)
    except Exception as problem:  # of hundreds of models, some fail in their own ways
        print(
            f"left out: {given[0]}: {type(problem).__name__}: {str(problem).splitlines()[:1]}",
            file=sys.stderr,
        )
        return []


def has_parameters(found: list[Call], expected: float) -> bool:
    """Whether the model is the one that was measured: names are reused, 3% may differ."""
    zeroed = [c for c in found if c.operator.phase == "optimizer" and c.operator.name == "aten.zero_"]
    count = sum(math.prod(call.operator.inputs[0].shape) for call in zeroed)
    return abs(count / expected - 1) < 0.03


def has_macs(found: list[Call], batch_size: int, expected: float) -> bool:
    """The same for inference, by multiply-adds; published ones leave parts of attention out."""
    step = step_of(found, batch_size)
    macs = (
        sum(work.flops for operator in step.operators for work in of_operator(operator, step))
        / 2
        / batch_size
    )
    return not expected or 0.88 < macs / expected < 1.35 or abs(macs - expected) < 2e7


def family(model: str) -> str:
    """The file of timm in which it is defined."""
    from timm.models import _registry

    name = model.split(".", maxsplit=1)[0]
    for module, former in _registry._module_to_deprecated_models.items():
        if name in former:
            return str(module)
    return _registry._model_to_module.get(name, name.split("_")[0])


def _recorded(name: str, batch_size: int, image: int, channels_last: bool, train: bool) -> list[Call]:
    import timm

    timm.layers.set_fused_attn(not train)  # PyTorch 1.12, which trained, had no fused attention
    # In inference, norms ran in 16 bits: the bytes of models with group norm in float32 would take the
    # RTX 4090, at its full bandwidth, twice as long as their whole step took.
    timm.layers.set_fast_norm(not train)
    simulated = device.register()
    recorder = _Calls()
    with device.recording(recorder):
        with operators.without_numbers():
            try:
                model = timm.create_model(name, img_size=image).train(train)
            except TypeError:
                model = timm.create_model(name).train(train)
        layout = torch.channels_last if channels_last else torch.contiguous_format
        model = model.to(memory_format=layout).to(simulated)
        x = torch.empty(batch_size, 3, image, image, device=simulated).to(memory_format=layout)
        optimizer = None
        if train:
            optimizer = torch.optim.SGD(
                model.parameters(), lr=1e-4, momentum=0.9, nesterov=True, foreach=False
            )
            for weight in model.parameters():
                weight.grad = torch.empty_like(weight)
                optimizer.state[weight]["momentum_buffer"] = torch.empty_like(weight)
        recorder.calls.clear()
        with torch.autocast(device.NAME, torch.float16), torch.set_grad_enabled(train):
            out = model(x)
            if optimizer:
                _update(recorder, out[0] if isinstance(out, tuple) else out, optimizer)
    return recorder.calls


def _update(recorder: _Calls, logits: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    targets = torch.empty(logits.shape[0], dtype=torch.long, device=logits.device)
    loss = torch.nn.functional.cross_entropy(logits, targets)
    recorder.phase = "backward"
    loss.backward()
    recorder.phase = "optimizer"
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def step_of(found: list[Call], batch_size: int) -> Step:
    """As the simulator takes it."""
    events = [call.operator for call in found]
    return Step(events=list(events), samples=batch_size, torch=str(torch.__version__))


# ---------------------------------------------------------------- an approximation of torch.compile

_LIBRARY = ("convolution", "mm", "addmm", "bmm", "baddbmm")
_REDUCTIONS = (
    "native_layer_norm", "native_group_norm", "_softmax", "mean", "sum", "linalg_vector_norm", "amax",
    "var_mean", "avg_pool2d", "_adaptive_avg_pool2d", "norm",
)  # fmt: skip


class _Fused:
    def __init__(self, size: int) -> None:
        self.size, self.calls = size, set[int]()
        self.read: dict[int, int] = {}
        self.written: dict[int, tuple[int, int]] = {}
        self.reduces = self.closed = False


def fused(found: list[Call], batch_size: int) -> Step:
    """Inference as torch.compile would fuse it, about: neighbours of the same size in one kernel.

    Inductor's own scheduler takes a minute a model here; where both were run, bytes agree within 3%.
    """
    producer: dict[int, _Fused | None] = {}
    order: list[Operator | _Fused] = []
    last_use: dict[int, list[int]] = {}
    for i, call in enumerate(found):
        for storage, _ in call.inputs:
            last_use.setdefault(storage, []).append(i)
        if _is_library(call.operator):
            order.append(_in_channels_last(call.operator))
            producer.update((storage, None) for storage, _ in call.outputs)
        else:
            _join(i, call, producer, order)
    events = [one if isinstance(one, Operator) else _kernel(one, last_use, len(found)) for one in order]
    kept = [event for event in events if event is not None]
    return Step(events=list(kept), samples=batch_size, torch="", compiled=True)


def _is_library(operator: Operator) -> bool:
    return operator.name.removeprefix("aten.") in _LIBRARY or "attention" in operator.name


def _in_channels_last(operator: Operator) -> Operator:
    """Inductor computes convolutions in channels_last, whatever the model's layout."""
    if operator.name != "aten.convolution":
        return operator

    def last(tensor: Tensor) -> Tensor:
        return Tensor(tensor.shape, tensor.dtype, "channels_last") if len(tensor.shape) == 4 else tensor

    inputs, outputs = [*map(last, operator.inputs)], [*map(last, operator.outputs)]
    return msgspec.structs.replace(operator, inputs=inputs, outputs=outputs)


def _join(i: int, call: Call, producer: dict[int, _Fused | None], order: list[Any]) -> None:
    sizes = [math.prod(t.shape) for _, t in call.inputs + call.outputs] or [1]
    size, single = max(sizes), len(call.inputs) == 1
    near = [producer.get(s) for s, t in call.inputs if single or math.prod(t.shape) >= size / 2]
    group = next((g for g in reversed(near) if g and not g.closed and g.size == size), None)
    if group is None:
        group = _Fused(size)
        order.append(group)
    group.calls.add(i)
    for storage, tensor in call.inputs:
        if storage not in group.written:
            group.read.setdefault(storage, tensor.nbytes)
    for storage, tensor in call.outputs:
        group.written[storage] = tensor.nbytes, i
        producer[storage] = group
    if call.operator.name.removeprefix("aten.") in _REDUCTIONS:
        group.reduces = True
        group.closed |= max((math.prod(t.shape) for _, t in call.outputs), default=0) < size / 2


def _kernel(group: _Fused, uses: dict[int, list[int]], calls: int) -> Operator | None:
    nbytes = sum(group.read.values())
    for storage, (size, at) in group.written.items():
        if at == calls - 1 or any(use not in group.calls for use in uses.get(storage, [])):
            nbytes += size
    if not nbytes:
        return None
    attributes = {"reduction": group.reduces, "nodes": len(group.calls)}
    return Operator("fused", "forward", [], [Tensor((nbytes,), "uint8")], attributes)
