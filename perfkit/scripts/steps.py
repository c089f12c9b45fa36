"""Steps: where one ends and the next begins, and what each consists of."""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field

clock = time.perf_counter


@dataclass(frozen=True)
class Step:
    """One step, from the end of the one before to its own end, by the host's clock."""

    seconds: float
    waited: float
    """The part of its seconds spent in the training loader's `next`."""
    samples: int
    tokens: int
    marks: frozenset[str] = frozenset()
    """What else happened in it: `new epoch`, `evaluation`, `checkpoint`."""
    updated: float = 0.0
    """The part of its seconds spent in optimizers."""


@dataclass
class Sums:
    """What the step under way consists of so far."""

    waited: float = 0.0
    samples: int = 0
    tokens: int = 0
    forward_samples: int = 0
    """Samples that went into the model: they count where there is no loader."""
    forward_tokens: int = 0
    marks: set[str] = field(default_factory=set)
    updated: float = 0.0

    def minus(self, first: "Sums") -> "Sums":
        """What came after the first sums."""
        rest = copy.copy(self)
        for name in ("waited", "samples", "tokens", "forward_samples", "forward_tokens", "updated"):
            setattr(rest, name, getattr(self, name) - getattr(first, name))
        rest.marks = self.marks - first.marks
        return rest

    def step(self, seconds: float) -> Step:
        """The step that ends now."""
        samples, tokens = self.samples or self.forward_samples, self.tokens or self.forward_tokens
        return Step(seconds, self.waited, samples, tokens, frozenset(self.marks), self.updated)


class Steps:
    """Counts steps and hands each to a listener at its end.

    Args:
        on_steps: called with the steps that have ended since the last call: one, except for the first call.
    """

    FIRST = 3
    """Steps in which more than their time is recorded."""

    def __init__(self, on_steps: Callable[[list[Step]], None]) -> None:
        self._on_steps = on_steps
        self.count = 0
        self.began_at: float | None = None
        """`time.time()` at which the first step began."""
        self.now = Sums()
        self.optimizers: list[object] = []
        """Those that have made a step, in their order."""
        self.in_backward = 0
        """Nested backward passes under way."""
        self._since = clock()
        self._last_of_cycle: object = None
        self._first: Sums | None = None
        self._first_ended = 0.0
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
            if self.count == 0:
                self._first, self._first_ended = copy.deepcopy(self.now), clock()
        if optimizer is self._last_of_cycle:
            self.end()

    def end(self) -> None:
        """A step has ended."""
        end = clock()
        if self.count or not self._first:
            steps = [self.now.step(end - self._since)]
        else:
            later = self.now.minus(self._first)
            steps = [self._first.step(self._first_ended - self._since), later.step(end - self._first_ended)]
        self.count += len(steps)
        self._on_steps(steps)
        self.now, self._since = Sums(), clock()
