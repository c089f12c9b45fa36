"""What is known of the script of this process: its steps, its switches, the sizes of its batches."""

import collections.abc
import contextlib
import copy
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from perfkit.scripts.outputs import Outputs, clock
from perfkit.scripts.sites import Sites
from perfkit.show import units

_STEPS_FOR_TYPICAL_SIZE = 12


def around(holder: Any, name: str, function: Callable[..., Any]) -> None:
    """Replaces a function of a module or class by another one, which is given the plain one first."""
    plain = getattr(holder, name)

    @functools.wraps(plain)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(plain, *args, **kwargs)

    setattr(holder, name, call)


@dataclass(eq=False)
class Step:
    """One step, from the end of the one before to its own end, by the host's clock."""

    seconds: float = 0.0
    waited: float = 0.0
    """The part of its seconds spent in the training loader's `next`."""
    updated: float = 0.0
    """The part of its seconds spent in optimizers."""
    samples: int = 0
    tokens: int = 0
    forward_samples: int = 0
    """Samples that went into the model: they count where there is no loader."""
    forward_tokens: int = 0
    evaluated: int = 0
    """Samples that went into a model in evaluation mode."""
    marks: set[str] = field(default_factory=set)
    """What else happened in it: `new epoch`, `evaluation`, `checkpoint`."""

    def since(self, first: "Step") -> "Step":
        """What came after the first part."""
        names = ("waited", "updated", "samples", "tokens", "forward_samples", "forward_tokens", "evaluated")
        rest = {name: getattr(self, name) - getattr(first, name) for name in names}
        return Step(marks=self.marks - first.marks, **rest)

    def ended(self, seconds: float) -> "Step":
        """This step, which took so long."""
        self.seconds = seconds
        self.samples = self.samples or self.forward_samples or 1  # where none is seen, steps are counted
        self.tokens = self.tokens or self.forward_tokens
        return self


class Steps:
    """Counts steps and hands each to a listener at its end; the first two are handed over together."""

    FIRST = 3
    """Steps in which more than their time is recorded."""

    def __init__(self, on_steps: Callable[[list[Step]], None]) -> None:
        self._on_steps = on_steps
        self.count = 0
        self.began_at: float | None = None
        """`time.time()` at which the first step began."""
        self.now = Step()
        self.optimizers: list[object] = []
        """Those that have made a step, in their order."""
        self.in_backward = 0
        """Nested backward passes under way."""
        self._since = clock()
        self._last_of_cycle: object = None
        self._first: Step | None = None
        self._backward_is_step = False

    @property
    def are_first(self) -> bool:
        """Whether the first steps are under way."""
        return self.count < self.FIRST

    def begin(self) -> None:
        """A batch is fetched, or a forward or backward pass begins."""
        if self._backward_is_step and not self.in_backward:
            self._backward_is_step = False
            self.end()
        if self.began_at is None:
            self.began_at, self._since = time.time(), clock()

    def backward_is_step(self) -> None:
        """The backward pass under way makes the step, which ends when something else begins.

        It does not end within `Tensor.backward`, where torch has taken function modes off their stack.
        """
        self._backward_is_step = True

    def first_may_end(self) -> None:
        """Keeps what has happened so far as the first step, in case it turns out to have ended here."""
        if self.count == 0 and not self._backward_is_step:
            self._first = copy.deepcopy(self.now)
            self._first.seconds = clock() - self._since

    def optimizer_stepped(self, optimizer: object) -> None:
        """An optimizer has made its step. The last optimizer of a cycle ends the training step.

        A cycle is complete when it begins again, so the first step is handed on with the second.
        """
        if self.in_backward:
            self.backward_is_step()
            return
        if any(optimizer is known for known in self.optimizers):
            self._last_of_cycle = self._last_of_cycle or self.optimizers[-1]
        else:  # an optimizer that shows up later is rarer, and ends a step from then on
            self.optimizers.append(optimizer)
            self._last_of_cycle = None
            self.first_may_end()
        if optimizer is self._last_of_cycle:
            self.end()

    def end(self) -> None:
        """A step has ended."""
        seconds, steps = clock() - self._since, [self.now]
        if first := self._first:
            seconds -= first.seconds
            steps = [first, self.now.since(first)]
            first.ended(first.seconds)
            self._first = None
        steps[-1].ended(seconds)
        self.count += len(steps)
        self._on_steps(steps)
        self.now, self._since = Step(), clock()


class Script:
    """The script: its steps, the switches that are set from outside, and why others cannot be."""

    def __init__(
        self, settings: dict[str, Any], outputs: Outputs, on_steps: Callable[[list[Step]], None]
    ) -> None:
        self.settings = settings
        self.outputs = outputs
        self.toggles: dict[str, Any] = dict(settings["toggles"])
        self.notes: list[str] = []
        self.refused: dict[str, str] = {}
        self.sites = Sites(settings["scratch"])
        self.steps = Steps(self._count)
        self.usual_samples = 0
        """Of a typical step of this rank."""
        self.usual_tokens = 0
        self.step_is = ""
        """What counts as a step, where it is not an optimizer's."""
        self.has_optimizer = False
        """Whether an optimizer of torch makes the steps, or has begun with the first one."""
        self.has_scaler = False
        """Whether the script has an enabled gradient scaler."""
        self.profiling = False
        """Whether the profiler records: forward and backward get their names then."""
        self._on_steps = on_steps
        self._seen: list[Step] = []
        self._later, self._later_s, self._later_samples = 0, 0.0, 0

    def note(self, text: str) -> None:
        """Keeps a remark for the parent, once."""
        if text not in self.notes:
            self.notes.append(text)

    def refuse(self, switch: str, reason: str) -> None:
        """A switch cannot be set here; the first reason counts."""
        self.refused.setdefault(switch, reason)

    def wants(self, switch: str) -> Any:
        """The value that is to be set from outside; None if there is none, or it is refused."""
        return None if switch in self.refused else self.toggles.get(switch)

    def phase(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """Names a part of the step in a profile."""
        return torch.profiler.record_function(name) if self.profiling else contextlib.nullcontext()

    def step_in_words(self) -> str:
        """What counts as a step."""
        names = dict.fromkeys(type(optimizer).__name__ for optimizer in self.steps.optimizers)
        if self.step_is or not names:
            return self.step_is
        return f"a step of {', '.join(names)}"

    def pace(self) -> str:
        """How fast its steps were, from the third on."""
        if not self._later:
            return ""
        step, rate = self._later_s / self._later, self._later_samples / self._later_s
        return f": {units.duration(step)} a step, {units.number(rate)} samples/s"

    def _count(self, steps: list[Step]) -> None:
        if not self.steps.are_first:
            self._later += 1
            self._later_s += steps[-1].seconds
            self._later_samples += steps[-1].samples
        if len(self._seen) < _STEPS_FOR_TYPICAL_SIZE:
            self._seen += steps
            self.usual_samples = statistics.median_low(step.samples for step in self._seen)
            self.usual_tokens = statistics.median_low(step.tokens for step in self._seen)
        self._on_steps(steps)


# ---------------------------------------------------------------- what passes through it


def tensors(value: Any, depth: int = 4) -> Iterator[torch.Tensor]:
    """All tensors in nested containers and plain objects, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth:
        parts: Any = ()
        if isinstance(value, collections.abc.Mapping):
            parts = value.values()
        elif isinstance(value, list | tuple):
            parts = value
        elif not isinstance(value, str | bytes | int | float):
            parts = getattr(value, "__dict__", {}).values()
        for part in list(parts):
            yield from tensors(part, depth - 1)


def first_tensor(value: Any) -> torch.Tensor | None:
    """The first tensor with at least one dimension."""
    return next((tensor for tensor in tensors(value) if tensor.dim()), None)


def size(tensor: torch.Tensor | None) -> tuple[int, int]:
    """Samples and tokens of a tensor: its first dimension; all elements of a 2-D integer tensor."""
    if tensor is None:
        return 0, 0
    is_text = tensor.dim() == 2 and not tensor.is_floating_point() and not tensor.is_complex()
    return tensor.shape[0], tensor.numel() if is_text else 0
