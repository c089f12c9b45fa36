"""An approximation of torch.compile: neighbours of one size run in one kernel, and share its registers."""

from msgspec.structs import replace

from perfkit.simulate.step import Allocate, Event, Operator, Step, Tensor

_LIBRARY = ("convolution", "mm", "addmm", "bmm", "baddbmm")
_REDUCTIONS = {
    "native_layer_norm", "native_group_norm", "native_layer_norm_backward", "native_group_norm_backward",
    "_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data", "mean", "sum",
    "linalg_vector_norm", "amax", "amin", "var_mean", "avg_pool2d", "_adaptive_avg_pool2d", "norm",
}  # fmt: skip


class _Kernel:
    """A fused kernel: the operators in it, and the memory that it reads and writes."""

    def __init__(self, size: int, first: Operator) -> None:
        self.size, self.first = size, first
        self.members: list[int] = []
        self.read: dict[int, Tensor] = {}
        self.written: dict[int, Tensor] = {}
        self.reduces = self.closed = False

    def add(self, index: int, operator: Operator) -> None:
        self.members.append(index)
        for tensor in operator.inputs:
            if tensor.block not in self.written:
                self.read.setdefault(tensor.block, tensor)
        self.written.update((tensor.block, tensor) for tensor in operator.outputs)


def fused(step: Step) -> Step:
    """The step as torch.compile would run it, about: bytes come out within a few percent of Inductor's."""
    operators = _decomposed(step.events)
    kernels: list[_Kernel | None] = []
    """The kernel of each event; None for what is not fused."""
    order: dict[int, int] = {}
    """The position of the event that wrote a block last."""
    latest: dict[int, _Kernel] = {}
    for at, event in enumerate(operators):
        kernels.append(_placed(at, event, order, latest) if isinstance(event, Operator) else None)
    inside = _never_written(operators, kernels)
    events: list[Event] = []
    for at, (event, kernel) in enumerate(zip(operators, kernels, strict=True)):
        if isinstance(event, Allocate):
            if event.block not in inside:
                events.append(event)
        elif kernel is None:
            events.append(_in_channels_last(event) if isinstance(event, Operator) else event)
        elif kernel.members[0] == at and (operator := _launched(kernel, inside)):
            events.append(operator)
    return replace(step, events=events, compiled=True)


def _decomposed(events: list[Event]) -> list[Event]:
    """Batch norm as the compiler sees it: reductions, then arithmetic; and max pooling with 8-bit indices."""
    indices = {
        event.outputs[1].block for event in events
        if isinstance(event, Operator) and event.name == "aten.max_pool2d_with_indices"
    }  # fmt: skip

    def narrow(tensors: list[Tensor]) -> list[Tensor]:
        return [replace(t, dtype="int8") if t.block in indices else t for t in tensors]

    result: list[Event] = []
    for event in events:
        if isinstance(event, Allocate) and event.block in indices:
            result.append(replace(event, nbytes=event.nbytes // 8))
        elif isinstance(event, Operator) and "max_pool2d" in event.name:
            pooled = replace(event, inputs=narrow(event.inputs), outputs=narrow(event.outputs))
            result.append(replace(pooled, name="aten.max_pool"))
        elif isinstance(event, Operator) and _has_statistics(event):
            small = event.outputs[1:]
            big = [tensor for tensor in event.inputs if len(tensor.shape) > 1]
            for count in range(1, len(big) + 1):
                result.append(replace(event, name="aten.sum", inputs=big[:count], outputs=small))
            inputs = [*event.inputs, *small]
            result.append(replace(event, name="aten.mul", inputs=inputs, outputs=event.outputs[:1]))
        else:
            result.append(event)
    return result


def _has_statistics(operator: Operator) -> bool:
    """Whether it is batch norm in training, which reads its input for the statistics first."""
    return operator.name.startswith("aten.native_batch_norm") and operator.outputs[1].numel > 0


def _placed(at: int, operator: Operator, order: dict[int, int], latest: dict[int, _Kernel]) -> _Kernel | None:
    """The kernel that an operator joins or begins; None if it stays a kernel of a library."""
    if operator.phase not in ("forward", "backward") or _is_library(operator):
        for tensor in operator.outputs:
            order[tensor.block] = at
            latest.pop(tensor.block, None)
        return None
    size = max((tensor.numel for tensor in operator.inputs + operator.outputs), default=1)
    last = max((order.get(tensor.block, -1) for tensor in operator.inputs), default=-1)
    near = [latest[tensor.block] for tensor in operator.inputs if tensor.block in latest]
    kernel = next((k for k in near if not k.closed and k.size == size and k.members[-1] >= last), None)
    if kernel is None:
        kernel = _Kernel(size, operator)
    kernel.add(at, operator)
    for tensor in operator.outputs:
        order[tensor.block], latest[tensor.block] = at, kernel
    if operator.name.removeprefix("aten.") in _REDUCTIONS:
        kernel.reduces = True
        kernel.closed |= max((tensor.numel for tensor in operator.outputs), default=0) < size / 2
    return kernel


def _is_library(operator: Operator) -> bool:
    name = operator.name.removeprefix("aten.").removesuffix("_backward")
    return name in _LIBRARY or "attention" in name


def _never_written(events: list[Event], kernels: list[_Kernel | None]) -> set[int]:
    """The blocks that only one kernel uses: they stay in registers."""
    users: dict[int, set[int]] = {}
    for event, kernel in zip(events, kernels, strict=True):
        if isinstance(event, Operator):
            for tensor in event.inputs + event.outputs:
                users.setdefault(tensor.block, set()).add(id(kernel) if kernel else 0)
    freed = {event.block for event in events if isinstance(event, Allocate) and event.nbytes < 0}
    return {block for block, some in users.items() if len(some) == 1 and 0 not in some and block in freed}


def _launched(kernel: _Kernel, inside: set[int]) -> Operator | None:
    """The operator `fused`; None if nothing of it reaches memory."""
    inputs = [tensor for block, tensor in kernel.read.items() if block not in inside]
    outputs = [tensor for block, tensor in kernel.written.items() if block not in inside]
    attributes = {"reduction": kernel.reduces, "nodes": len(kernel.members)}
    if not inputs and not outputs:
        return None
    return replace(kernel.first, name="fused", inputs=inputs, outputs=outputs, attributes=attributes)


def _in_channels_last(operator: Operator) -> Operator:
    """The compiler computes convolutions in channels_last, whatever the layout of the model."""
    if "convolution" not in operator.name or operator.phase not in ("forward", "backward"):
        return operator
    return replace(operator, inputs=[*map(_last, operator.inputs)], outputs=[*map(_last, operator.outputs)])


def _last(tensor: Tensor) -> Tensor:
    return replace(tensor, layout="channels_last") if len(tensor.shape) == 4 else tensor
