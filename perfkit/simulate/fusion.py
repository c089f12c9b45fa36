"""An approximation of torch.compile: neighbours of one size run in one kernel, and share its registers."""

import collections
import re

from msgspec.structs import replace

from perfkit.simulate.step import Allocate, Event, Operator, Step, Tensor

_LIBRARY = re.compile("(convolution|mm|addmm|bmm|baddbmm|.*attention.*)(_backward)?")
_REDUCTION = re.compile(
    "native_(layer|group)_norm(_backward)?|_(log_)?softmax(_backward_data)?|mean|sum|linalg_vector_norm|amax|amin"
    "|var_mean|avg_pool2d|_adaptive_avg_pool2d|norm"
)


class _Kernel:
    """A fused kernel: what its operators read and write, by block."""

    def __init__(self, size: int, first: Operator) -> None:
        self.size, self.first = size, first
        self.last = 0
        """The position of the event that joined last."""
        self.read: dict[int, Tensor] = {}
        self.written: dict[int, Tensor] = {}
        self.reduces = self.closed = False

    def add(self, at: int, operator: Operator) -> None:
        self.last = at
        for tensor in operator.inputs:
            if tensor.block not in self.written:
                self.read.setdefault(tensor.block, tensor)
        self.written.update((tensor.block, tensor) for tensor in operator.outputs)
        if _REDUCTION.fullmatch(operator.name.removeprefix("aten.")):
            self.reduces = True
            largest = max((tensor.numel for tensor in operator.outputs), default=0)
            self.closed |= largest < self.size / 2


def fused(step: Step) -> Step:
    """The step as torch.compile would run it, about: bytes come out within a few percent of Inductor's."""
    before = _decomposed(step.events)
    kernels, inside = _kernels(before)
    events: list[Event] = []
    for event, kernel in zip(before, kernels, strict=True):
        if kernel and event is kernel.first:
            inputs, outputs = (
                [tensor for block, tensor in side.items() if block not in inside]
                for side in (kernel.read, kernel.written)
            )
            about = {"reduction": kernel.reduces}
            if inputs or outputs:
                events.append(
                    replace(kernel.first, name="fused", inputs=inputs, outputs=outputs, attributes=about)
                )
        elif isinstance(event, Operator) and not kernel:
            events.append(_in_channels_last(event))
        elif not kernel and not (isinstance(event, Allocate) and event.block in inside):
            events.append(event)
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
        match event:
            case Allocate() if event.block in indices:
                result.append(replace(event, nbytes=event.nbytes // 8))
            case Operator() if "max_pool2d" in event.name:
                inputs, outputs = narrow(event.inputs), narrow(event.outputs)
                result.append(replace(event, name="aten.max_pool", inputs=inputs, outputs=outputs))
            # In training, batch norm reads its input for the statistics first.
            case Operator() if event.name.startswith("aten.native_batch_norm") and event.outputs[1].numel:
                small = event.outputs[1:]
                big = [tensor for tensor in event.inputs if len(tensor.shape) > 1]
                for count in range(1, len(big) + 1):
                    result.append(replace(event, name="aten.sum", inputs=big[:count], outputs=small))
                inputs = [*event.inputs, *small]
                result.append(replace(event, name="aten.mul", inputs=inputs, outputs=event.outputs[:1]))
            case _:
                result.append(event)
    return result


def _kernels(events: list[Event]) -> tuple[list[_Kernel | None], set[int]]:
    """The kernel of each event, None for what is not fused; and the blocks that stay in registers."""
    kernels: list[_Kernel | None] = []
    written: dict[int, tuple[int, _Kernel | None]] = {}
    """Where a block was written last, and by which kernel; None: a library's."""
    users: dict[int, set[_Kernel | None]] = collections.defaultdict(set)
    freed = set()
    for at, event in enumerate(events):
        kernel = None
        if isinstance(event, Operator):
            is_library = _LIBRARY.fullmatch(event.name.removeprefix("aten."))
            if event.phase in ("forward", "backward") and not is_library:
                kernel = _joined(event, written)
                kernel.add(at, event)
            written.update((tensor.block, (at, kernel)) for tensor in event.outputs)
            for tensor in event.inputs + event.outputs:
                users[tensor.block].add(kernel)
        elif isinstance(event, Allocate) and event.nbytes < 0:
            freed.add(event.block)
        kernels.append(kernel)
    alone = {block for block in freed if len(users[block]) == 1 and None not in users[block]}
    return kernels, alone


def _joined(operator: Operator, written: dict[int, tuple[int, _Kernel | None]]) -> _Kernel:
    """The kernel that an operator joins or begins."""
    size = max((tensor.numel for tensor in operator.inputs + operator.outputs), default=1)
    sources = [written[tensor.block] for tensor in operator.inputs if tensor.block in written]
    ready = max((at for at, _ in sources), default=-1)
    joined = (k for _, k in sources if k and not k.closed and k.size == size and k.last >= ready)
    return next(joined, None) or _Kernel(size, operator)


def _in_channels_last(operator: Operator) -> Operator:
    """The compiler computes convolutions in channels_last, whatever the layout of the model."""
    if "convolution" not in operator.name or operator.phase not in ("forward", "backward"):
        return operator
    inputs, outputs = (
        [replace(t, layout="channels_last") if len(t.shape) == 4 else t for t in tensors]
        for tensors in (operator.inputs, operator.outputs)
    )
    return replace(operator, inputs=inputs, outputs=outputs)
