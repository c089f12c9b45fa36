"""Steps: where one ends and the next begins, and what each consists of."""

from __future__ import annotations

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
    """Of it, in the training loader's `next`."""
    samples: int
    tokens: int
    marks: frozenset[str]
    """What else happened in it: `new epoch`, `evaluation`, `checkpoint`."""
    updated: float = 0.0
    """Of its seconds, those in optimizers."""


@dataclass
class _Sums:
    """What the step under way consists of so far."""

    waited: float = 0.0
    samples: int = 0
    tokens: int = 0
    forward: list[int] = field(default_factory=lambda: [0, 0])
    """Samples and tokens that went into the model: what counts where there is no loader."""
    marks: set[str] = field(default_factory=set)
    updated: float = 0.0

    def without(self, first: _Sums) -> _Sums:
        """What came after the first ones."""
        forward = [own - before for own, before in zip(self.forward, first.forward, strict=True)]
        return _Sums(
            self.waited - first.waited, self.samples - first.samples, self.tokens - first.tokens, forward,
            self.marks - first.marks, self.updated - first.updated,
        )  # fmt: skip

    def step(self, seconds: float) -> Step:
        samples, tokens = self.samples or self.forward[0], self.tokens or self.forward[1]
        return Step(seconds, self.waited, samples, tokens, frozenset(self.marks), self.updated)


class Steps:
    """Counts steps and hands each to whoever listens, at its end.

    Args:
        on_steps: called with the steps that have ended since the last call: one, but for the first call.
    """

    def __init__(self, on_steps: Callable[[list[Step]], None]) -> None:
        self._on_steps = on_steps
        self.count = 0
        self.began_at: float | None = None
        """`time.time()` at which the first step began."""
        self.now = _Sums()
        self._since = clock()
        self._main: object = None
        """The optimizer that ends a step: the last of a cycle."""
        self._order: list[object] = []
        self._first: _Sums | None = None
        """The sums at the last moment that can be the end of the first step …"""
        self._first_ended = 0.0
        """… and that moment."""

    def begin(self) -> None:
        """The first batch is fetched, or the first forward pass begins."""
        if self.began_at is None:
            self.began_at, self._since = time.time(), clock()

    def optimizer_stepped(self, optimizer: object) -> None:
        """An optimizer has made its step. One that is made in every step ends it: the last, if several are.

        That a cycle is complete shows when it begins again, so the first step is handed on with the second.
        """
        if any(optimizer is known for known in self._order):
            self._main = self._order[-1] if self._main is None else self._main
        else:  # one that shows up later is rarer, and ends a step from then on
            self._order.append(optimizer)
            self._main = None
            if self.count == 0:
                self._first, self._first_ended = copy.deepcopy(self.now), clock()
        if optimizer is self._main:
            self.end()

    def end(self) -> None:
        """A step has ended."""
        end = clock()
        if self.count or not self._first:
            steps = [self.now.step(end - self._since)]
        else:
            later = self.now.without(self._first)
            steps = [self._first.step(self._first_ended - self._since), later.step(end - self._first_ended)]
        self.count += len(steps)
        self._on_steps(steps)
        self.now, self._since = _Sums(), clock()
