"""Takes down what a program asks of the simulated device: operators, copies, waits, memory."""

from __future__ import annotations

import contextlib
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn

from perfkit.simulate import describe, device
from perfkit.simulate.graph import Launch, Plan
from perfkit.simulate.step import Allocate, Copy, Event, Fetch, MemoryKind, Operator, Phase, Wait

_NOT_THE_PROGRAM = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep, "<")


class Recording:
    """The events of a step. Memory is followed from the beginning, everything else while `on`."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.on = False
        self.phase: Phase = "prepare"
        self.pinned = False
        self._stream = 0
        self._quiet = False
        self._gone: set[int] = set()
        """Blocks that were given back while quiet."""
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
        if self._quiet:
            return
        if self.on and (operator := describe.operator_of(func, args, kwargs, out, device.is_simulated)):
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
        for tensor in filter(device.is_simulated, describe.tensors(tree)):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._blocks:
                continue
            block = self._new(storage.nbytes())
            self._blocks[key] = (block.block, weakref.ref(storage, partial(self._free, key)))
            self._live.add(block.block)
            if self.on and not self._quiet:
                self.events.append(block)

    def _free(self, key: int, _: Any) -> None:
        number = self._blocks.pop(key)[0]
        block = self._made[number]
        self._live.discard(number)
        if self._quiet:
            self._gone.add(number)
            return
        if block.kind == "activations" and self.phase == "forward":
            self._kinds.setdefault(number, "temporary")  # the forward pass itself no longer needs it
        if self.on:
            self.events.append(Allocate(-block.nbytes, block.kind, number))

    def _new(self, nbytes: int) -> Allocate:
        block = Allocate(nbytes, _BORN_IN[self.phase], len(self._made))
        self._made.append(block)
        return block

    def name(self, tensors: Any, kind: MemoryKind) -> None:
        """Says what the memory of tensors is for."""
        for tensor in filter(device.is_simulated, describe.tensors(tensors)):
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

    # ------------------------------------------------------------ compiled graphs

    def graph(self, plan: Plan, compute: Callable[[], Any], given: list[Any]) -> Any:
        """Records a compiled graph by its plan; its outputs are computed by its operators, unrecorded."""
        blocks = dict(zip(plan.inputs, map(self._block_of, given), strict=True))
        self._quiet, self._gone = True, set()
        try:
            outputs = compute()
            made = [leaf for leaf in describe.tensors(outputs) if self._block_of(leaf) is None]
            self.hold(made)
        finally:
            self._quiet = False
        if self.on:
            names = {id(leaf): name for leaf, name in zip(outputs, plan.outputs, strict=True)}
            own = {
                names[id(leaf)]: self._made[block]
                for leaf in made
                if (block := self._block_of(leaf)) is not None
            }
            freed = {name: self._made[block] for name, block in blocks.items() if block in self._gone}
            self.events += self._played(plan, own, freed)
        return outputs

    def _played(self, plan: Plan, own: dict[str, Allocate], freed: dict[str, Allocate]) -> Iterator[Event]:
        """The events of a plan.

        Args:
            plan: of a compiled graph.
            own: the blocks of what it returns, by name.
            freed: the blocks of its inputs that nobody else needs: they are given back after their last use.
        """
        alive = dict(freed)
        for number, launch in enumerate(plan.launches):
            dying = [name for name in launch.reads if name in alive and plan.last_use[name] == number]
            if launch.name == "fused" and not launch.attributes["reduction"]:
                for name in self._reused(launch, dying, alive):  # its result is written over its input
                    yield _returned(alive.pop(name))
                    dying.remove(name)
            for buffer in launch.makes:
                block = own.get(buffer.name) or self._new(buffer.nbytes)
                if block.nbytes and buffer.name not in alive:
                    yield block
                    if buffer.name not in own:
                        self._kinds[block.block] = "temporary"
                        alive[buffer.name] = block
            if launch.name:
                yield Operator(
                    launch.name, self.phase, launch.inputs, launch.outputs, launch.attributes, launch.module,
                    launch.site, self._stream,
                )  # fmt: skip
            unused = [buffer.name for buffer in launch.makes if plan.last_use[buffer.name] == number]
            for name in dict.fromkeys([*dying, *unused]):
                if name in alive:
                    yield _returned(alive.pop(name))
        yield from map(_returned, alive.values())

    def _reused(self, launch: Launch, dying: list[str], alive: dict[str, Allocate]) -> list[str]:
        sizes = [buffer.nbytes for buffer in launch.makes]
        reused = []
        for name in dying:
            if alive[name].nbytes in sizes:
                sizes.remove(alive[name].nbytes)
                reused.append(name)
        return reused

    def _block_of(self, leaf: Any) -> int | None:
        if not device.is_simulated(leaf):
            return None
        found = self._blocks.get(leaf.untyped_storage()._cdata)
        return found[0] if found else None

    # ------------------------------------------------------------ where in the program

    def _place(self) -> tuple[str, str]:
        """Module and site; of an operator of backward, those of the forward operator that it belongs to."""
        node: Any = torch._C._current_autograd_node()
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


def _returned(block: Allocate) -> Allocate:
    return Allocate(-block.nbytes, block.kind, block.block)


def reason(problem: Exception) -> str:
    """Why a program could not be planned, in words."""
    if isinstance(problem, device.Unpredictable):
        return str(problem)
    name = type(problem).__name__
    if name in ("DynamicOutputShapeException", "DataDependentOutputException"):
        return f"what {problem} gives depends on the values of tensors, which are not simulated"
    if name == "UnsupportedOperatorException" or isinstance(problem, NotImplementedError):
        return f"an operator is not known to the simulation: {str(problem).splitlines()[0][:200]}"
    first = str(problem).strip().splitlines() or [""]
    return f"{name}: {first[0][:300]}"


def refuse_module(module: nn.Module) -> None:
    """Raises Unpredictable for layers that a GPU computes with other operators than this device."""
    if getattr(module, "sparse", False):
        raise device.Unpredictable(
            f"its {type(module).__name__} layers have sparse gradients, which are not modelled"
        )
    if isinstance(module, nn.LSTM | nn.GRU | nn.RNN | nn.LSTMCell | nn.GRUCell):
        name = type(module).__name__
        raise device.Unpredictable(f"its {name} layers run in kernels of cuDNN that are not modelled")


def _site() -> str:
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_NOT_THE_PROGRAM) and file != contextlib.__file__:
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
