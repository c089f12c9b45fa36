"""Steps that have other work in them, such as an evaluation: left out, unless most steps have some."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from perfkit.additions.scripts.script import Script
from perfkit.worker.procedure import Procedures, TakenSteps

MANY_MARKED = 8  # so many steps with other work in them count from then on, if they are half of all steps


class MarkedSteps(TakenSteps):
    """Consecutive steps, some of which do not count, nor does their time."""

    def __init__(self, device: torch.device, clock: Callable[[], float], early: Sequence[Any]) -> None:
        super().__init__(device, clock, early)
        self.marks = set[str]()  # the other work in those that are left out

    def leave_out(self, step: Any) -> None:
        """Adds a step that does not count."""
        self.add(step)
        self.counted.pop()
        self.marks |= step.marks

    def count_all(self) -> None:
        self.counted = [*self._early, *self._later]


class MarkedProcedures(Procedures):
    """Procedures whose steps have marks: the other work in them."""

    kind_of_steps = MarkedSteps
    subject: Script
    under_way: MarkedSteps
    _counts_marked = False  # whether steps with other work in them count
    _unmarked_steps = _marked_steps = 0

    def add(self, step: Any) -> None:
        if self._counts_marked or not step.marks:
            self.under_way.add(step)
            self._unmarked_steps += 1
            return
        self.under_way.leave_out(step)
        self._marked_steps += 1
        if self._marked_steps >= max(MANY_MARKED, self._unmarked_steps):
            self.count_marked()

    def count_marked(self) -> None:
        """Steps with other work in them count from now on, and those of the last `take`."""
        self._counts_marked = True
        marks = " and ".join(sorted(self.under_way.marks))
        which = "every second step" if self._unmarked_steps else "every step"
        self.subject.note(f"{which} has {marks} in it, so that is part of a step here")
        self.under_way.count_all()
