"""Approximates torch.compile: neighbouring operators of one size run in one kernel and share registers."""

import re
from collections.abc import Callable, Collection, Iterator, Sequence

from msgspec.structs import replace

from perfkit.additions.simulate.step import Allocate, Event, OperatorCall, StepEvents, Tensor

_LIBRARY = re.compile("(convolution|mm|addmm|bmm|baddbmm|.*attention.*)(_backward)?")
_REDUCTION = re.compile(
    "native_(layer|group)_norm(_backward)?|_(log_)?softmax(_backward_data)?|mean|sum|linalg_vector_norm|amax|amin"
    "|var_mean|avg_pool2d|_adaptive_avg_pool2d|norm"
)


class _Kernel:
    """A fused kernel: the tensors that its operators read and write, by memory block."""

    def __init__(self, size: int, first: OperatorCall) -> None:
        self.size, self.first = size, first
        self.last = 0  # the position of the event that was added last
        self.read: dict[int, Tensor] = {}
        self.written: dict[int, Tensor] = {}
        self.reduces = self.closed = False

    def add(self, at: int, operator: OperatorCall) -> None:
        self.last = at
        for tensor in operator.inputs:
            if tensor.block not in self.written:
                self.read.setdefault(tensor.block, tensor)
        self.written.update((tensor.block, tensor) for tensor in operator.outputs)
        if _REDUCTION.fullmatch(operator.name.removeprefix("aten.")):
            self.reduces = True
            largest = max((tensor.numel for tensor in operator.outputs), default=0)
            self.closed |= largest < self.size / 2

    def operator(self, inside: Collection[int]) -> OperatorCall:
        """The kernel as an operator call, without the blocks that stay in its registers."""
        inputs = [tensor for block, tensor in self.read.items() if block not in inside]
        outputs = [tensor for block, tensor in self.written.items() if block not in inside]
        about = {"reduction": self.reduces}
        return replace(self.first, name="fused", inputs=inputs, outputs=outputs, attributes=about)


def fused(step: StepEvents) -> StepEvents:
    """Roughly the step that torch.compile would run: its bytes are within a few percent of Inductor's."""
    parts: list[Event | _Kernel] = []
    written: dict[int, tuple[int, _Kernel | None]] = {}
    """Where a block was last written, and by which kernel; None: by a library."""
    users: dict[int, _Kernel | None] = {}  # the only kernel that uses a block; None: a library, or several
    for at, event in enumerate(_decomposed(step.events)):
        if not isinstance(event, OperatorCall):
            parts.append(event)
            continue
        kernel = None
        if event.phase not in ("forward", "backward") or _LIBRARY.fullmatch(event.name.removeprefix("aten.")):
            # Compiled convolutions use channels_last, whatever the layout of the model.
            parts.append(_changed(event, _in_channels_last) if "convolution" in event.name else event)
        else:
            kernel = _joined(event, written)
            if kernel.first is event:
                parts.append(kernel)
            kernel.add(at, event)
        written.update((tensor.block, (at, kernel)) for tensor in event.outputs)
        for tensor in event.inputs + event.outputs:
            alone = users.setdefault(tensor.block, kernel) is kernel
            users[tensor.block] = kernel if alone else None
    freed = {part.block for part in parts if isinstance(part, Allocate) and part.nbytes < 0}
    inside = {block for block in freed if users.get(block)}
    every = (part.operator(inside) if isinstance(part, _Kernel) else part for part in parts)
    return replace(step, events=[event for event in every if _remains(event, inside)], compiled=True)


def _remains(event: Event, inside: Collection[int]) -> bool:
    if isinstance(event, Allocate):
        return event.block not in inside
    return not isinstance(event, OperatorCall) or bool(event.inputs or event.outputs)


def _decomposed(events: Sequence[Event]) -> Iterator[Event]:
    """Batch norm as the compiler sees it, reductions then arithmetic; and max pooling with 8-bit indices."""
    indices = {
        event.outputs[1].block
        for event in events
        if isinstance(event, OperatorCall) and event.name == "aten.max_pool2d_with_indices"
    }

    def narrow(tensor: Tensor) -> Tensor:
        return replace(tensor, dtype="int8") if tensor.block in indices else tensor

    for event in events:
        match event:
            case Allocate() if event.block in indices:
                yield replace(event, nbytes=event.nbytes // 8)
            case OperatorCall() if "max_pool2d" in event.name:
                yield replace(_changed(event, narrow), name="aten.max_pool")
            # In training, batch norm first reads its input for the statistics.
            case OperatorCall() if event.name.startswith("aten.native_batch_norm") and event.outputs[1].numel:
                small = event.outputs[1:]
                big = [tensor for tensor in event.inputs if len(tensor.shape) > 1]
                for count in range(1, len(big) + 1):
                    yield replace(event, name="aten.sum", inputs=big[:count], outputs=small)
                inputs = [*event.inputs, *small]
                yield replace(event, name="aten.mul", inputs=inputs, outputs=event.outputs[:1])
            case _:
                yield event


def _changed(operator: OperatorCall, change: Callable[[Tensor], Tensor]) -> OperatorCall:
    inputs, outputs = map(change, operator.inputs), map(change, operator.outputs)
    return replace(operator, inputs=[*inputs], outputs=[*outputs])


def _in_channels_last(tensor: Tensor) -> Tensor:
    return replace(tensor, layout="channels_last") if len(tensor.shape) == 4 else tensor


def _joined(operator: OperatorCall, written: dict[int, tuple[int, _Kernel | None]]) -> _Kernel:
    """The kernel that an operator joins, or a new one."""
    size = max((tensor.numel for tensor in operator.inputs + operator.outputs), default=1)
    sources = [written[tensor.block] for tensor in operator.inputs if tensor.block in written]
    ready = max((at for at, _ in sources), default=-1)
    joined = (k for _, k in sources if k and not k.closed and k.size == size and k.last >= ready)
    return next(joined, None) or _Kernel(size, operator)
