"""What holds memory in a training step: every tensor's storage, from its allocation until it is freed.

It counts the bytes of tensors that operators return, on a CPU as on a GPU. What a library allocates for
itself inside one operator (cuDNN's workspace) and what the allocator keeps in reserve are not tensors: they
are the difference to the allocator's own figures.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from perfkit.errors import InvalidValue
from perfkit.worker.device import peak_bytes, reset_peak
from perfkit.worker.messages import MemoryReport
from perfkit.worker.training import Training, inner_model

KIND_IN = {"forward": "activations", "data": "batch"}
"""The kind of what a phase allocates, where nothing else is known of it; workspace in other phases."""

Storage = list[Any]
"""Where, kind, size. The kind of a gradient shows after its allocation, also for one that is in the peak."""


class Ledger(TorchDispatchMode):
    """Accounts for all storages of a training while it is active."""

    def __init__(self, training: Training) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.training = training
        self.phase = "data"
        self.modules: list[str] = []
        """The modules that compute, the innermost last."""
        self.live: dict[int, Storage] = {}
        self.bytes = 0
        self.peak = 0
        self.peak_phase = ""
        self.at_peak: list[Storage] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for tensor in tree_iter(outputs):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor)
        return outputs

    def note(self, tensor: torch.Tensor, kind: str = "", where: str = "") -> None:
        """Records a tensor under this kind and place, or under those that the phase and the module imply."""
        if tensor.device.type != self.training.device.type or tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.live:
            if kind:
                self.live[key][:2] = where, kind
            return
        where = where or (self.modules[-1] if self.modules else self.phase)
        self.live[key] = [where, kind or KIND_IN.get(self.phase, "workspace"), size]
        weakref.finalize(storage, self._freed, key)
        self.bytes += size
        if self.bytes > self.peak:
            self.peak, self.at_peak, self.peak_phase = self.bytes, list(self.live.values()), self.phase

    def _freed(self, key: int) -> None:
        if freed := self.live.pop(key, None):
            self.bytes -= freed[2]

    def note_lasting(self) -> None:
        """Records weights, gradients and optimizer state as such, wherever they were allocated."""
        model = inner_model(self.training.model)
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            self.note(tensor.data, "weights", name)
            if tensor.grad is not None:
                self.note(tensor.grad, "gradients", name)
            for value in self.training.optimizer.state.get(tensor, {}).values():
                if isinstance(value, torch.Tensor):
                    self.note(value, "optimizer", name)

    @contextlib.contextmanager
    def in_phase(self, name: str) -> Iterator[None]:
        """What is allocated inside belongs to this phase; copies count as data."""
        before, self.phase = self.phase, "data" if name == "copy" else name
        try:
            yield
        finally:
            self.phase = before

    @contextlib.contextmanager
    def modules_named(self) -> Iterator[None]:
        """Knows the module that computes, and gradients as they arrive."""
        model, hooks = inner_model(self.training.model), []

        def leave(*_: Any) -> None:
            self.modules.pop()

        for name, module in model.named_modules():
            if name:
                hooks += [
                    module.register_forward_pre_hook(lambda *_, name=name: self.modules.append(name)),
                    module.register_forward_hook(leave),
                ]
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                hook = parameter.register_post_accumulate_grad_hook
                hooks.append(hook(lambda arrived, name=name: self.note(arrived.grad, "gradients", name)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def measure(training: Training, steps: int = 2) -> MemoryReport:
    """Takes some steps and accounts for their memory.

    Raises:
        InvalidValue: the model is compiled.
    """
    if training.recipe.compile:
        raise InvalidValue(
            "the memory of a compiled model cannot be followed, as its kernels allocate on their own",
            "Use the recipe with compile=false",
        )
    ledger = Ledger(training)
    ledger.note_lasting()
    reset_peak(training.device)
    with ledger.modules_named(), training.phases(ledger.in_phase), ledger:
        for _ in range(steps):
            training.step()
            ledger.note_lasting()
    on_gpu = training.device.type == "cuda"
    allocated, reserved = peak_bytes(training.device) if on_gpu else (None, None)
    return MemoryReport.of(
        ledger.at_peak,
        peak_phase=ledger.peak_phase,
        allocated=allocated,
        reserved=reserved,
        recipe=training.recipe.describe(),
    )
