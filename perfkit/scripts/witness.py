"""What a script does in its steps, noted in its own process: the facts for `behaviour.differences`."""

import contextlib
import pkgutil
from collections.abc import Iterable, Sequence
from types import BuiltinFunctionType
from typing import Any

import torch

from perfkit.scripts.behaviour import Behaviour
from perfkit.scripts.loaders import Loaders
from perfkit.scripts.models import DTYPES, Models
from perfkit.scripts.optimizers import Gradients, Optimizers
from perfkit.scripts.script import Script, Step

_FIRST = 16
"""Inputs with a checksum: on a GPU each is waited for, which must be over before steps are timed."""
_GRAPHS = 4
"""Losses whose computation is looked at."""
_RELIED_ON = (
    "time.perf_counter", "time.perf_counter_ns", "time.monotonic", "time.time", "torch.cuda.synchronize",
    "torch.cuda.Event", "torch.cuda.Event.record", "torch.cuda.Event.elapsed_time", "torch.Tensor.backward",
    "torch.autograd.backward", "torch.nn.Module.__call__", "torch.optim.Optimizer.profile_hook_step",
    "torch.utils.data.DataLoader.__init__", "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
)  # fmt: skip
_SWITCHES = ("params", "foreach", "fused", "capturable", "differentiable", "maximize")
"""Of a parameter group: what says how an optimizer computes, not what."""


class Witness:
    """Notes what each step did."""

    def __init__(self, script: Script, parts: tuple[Loaders, Models, Gradients, Optimizers]) -> None:
        self._script = script
        self._loaders, self._models, self._gradients, self._optimizers = parts
        self._models.on_input, self._gradients.on_backward = self._see_input, self._see_graph
        self._relied_on: dict[str, Any] = {}
        self._replaced: list[str] = []
        self._facts: dict[str, list[Any]] = {
            name: [] for name in Behaviour.__struct_fields__ if Behaviour.__annotations__[name] == list[int]
        }
        self._batches: list[float] = []
        self._formats: set[torch.dtype] = set()
        self._first_weights: dict[int, float] = {}
        self._settings: dict[str, str] = {}
        self._values = self._backwards = 0

    def begin(self) -> None:
        """Remembers the functions that measuring relies on, before the script's own code follows."""
        self._relied_on = {name: pkgutil.resolve_name(name) for name in _RELIED_ON}
        clocks = {name: one for name, one in self._relied_on.items() if name.startswith("time.")}
        self._replaced = [name for name, one in clocks.items() if not isinstance(one, BuiltinFunctionType)]

    def _see_input(self, given: torch.Tensor | None) -> None:
        if given is None or self._loaders.held_on is not None:
            return
        self._values += given.numel()
        if len(self._batches) < _FIRST:
            self._batches.append(_sum(given))

    def _see_graph(self, roots: Any) -> None:
        """The number formats in which the first losses were computed, compiled parts excepted."""
        if self._gradients.count >= _GRAPHS:
            return
        seen: set[Any] = {None}
        waiting = [root.grad_fn for root in (roots if isinstance(roots, list | tuple) else [roots])]
        while waiting:
            node = waiting.pop()
            if node not in seen:
                seen.add(node)
                self._formats |= {one.dtype for one in getattr(node, "_input_metadata", ())}
                waiting += [before for before, _ in node.next_functions]

    def see(self, steps: Sequence[Step]) -> None:
        """Steps have ended."""
        if not self._first_weights:
            self._first_weights = self._weights()
            self._settings = self._optimizer()
        for step in steps:
            if self._loaders.held_on is None:
                self._note(step)
            self._values, self._backwards = 0, self._gradients.count

    def _note(self, step: Step) -> None:
        facts = self._facts
        for mark in step.marks & {"evaluation", "checkpoint"}:
            facts[f"{mark}s"].append(len(facts["loaded"]))
        # Batches of an evaluation may come from the same loader.
        facts["loaded"].append(step.forward_samples if "evaluation" in step.marks else step.samples)
        facts["trained"].append(step.forward_samples)
        facts["values"].append(self._values)
        facts["backwards"].append(self._gradients.count - self._backwards)

    def behaviour(self) -> Behaviour:
        """Everything that was seen until now."""
        models, loader, data = self._models, self._loaders.training, None
        with contextlib.suppress(AttributeError, TypeError, NotImplementedError):  # some have no length
            data = len(loader.dataset) if loader.batch_size else None  # else an item may be a batch
        parameters, now = models.parameters(), self._weights()
        changed = [p for p in parameters if now[id(p)] != self._first_weights.get(id(p))]
        later = [name for name, one in self._relied_on.items() if pkgutil.resolve_name(name) is not one]
        return Behaviour(
            **self._facts,
            batches=self._batches,
            data=data,
            parameters=sum(p.numel() for p in parameters),
            changed=sum(p.numel() for p in changed),
            weights=_narrowest({p.dtype for p in parameters}),
            activations=_narrowest(self._formats),
            autocast=_narrowest({DTYPES.get(self._script.wants("amp"), models.autocast_dtype)}),
            optimizer=self._settings,
            replaced=sorted({*self._replaced, *later}),
        )

    def _weights(self) -> dict[int, float]:
        return {id(p): _sum(p) for p in self._models.parameters()}

    def _optimizer(self) -> dict[str, str]:
        groups = [group for optimizer in self._optimizers.stepped for group in optimizer.param_groups]
        names = dict.fromkeys(name for group in groups for name in group if name not in _SWITCHES)
        return {
            name: ", ".join(dict.fromkeys(_text(group[name]) for group in groups if name in group))
            for name in names
        }


def _sum(tensor: torch.Tensor) -> float:
    exact = torch.float32 if tensor.device.type == "mps" else torch.float64
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return float(real.detach().sum(dtype=exact))


def _text(value: Any) -> str:
    return f"{float(value):.6g}" if isinstance(value, torch.Tensor | float) else str(value)


def _narrowest(kinds: Iterable[torch.dtype | None]) -> str | None:
    floating = [kind for kind in kinds if kind is not None and kind.is_floating_point]
    return str(min(floating, key=lambda kind: kind.itemsize)).removeprefix("torch.") if floating else None
