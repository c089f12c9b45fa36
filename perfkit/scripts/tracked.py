"""The steps of a loop that was observed in its own process: their times, and what they waited for."""

import msgspec
import numpy as np

from perfkit.results import stats
from perfkit.results.stats import Estimate

_FIRST = 2
"""Steps that the figures leave out where there are others: caches, compilation, workers that start."""


class Tracked(msgspec.Struct):
    """Raw values of a loop's steps, from the request for a batch to the request for the next one."""

    step_s: list[float] = []
    wait_s: list[float] = []
    """The part of each step in the loader's `next`."""
    samples: list[int] = []
    """Samples of each step; 0 where a batch holds no tensor."""
    tokens: list[int] = []
    loops: int = 0
    """How many times the loader was gone through, or begun."""

    @property
    def counted(self) -> slice:
        """The steps that the figures are made from."""
        return slice(_FIRST if len(self.step_s) > 2 * _FIRST else 0, None)

    @property
    def step(self) -> Estimate | None:
        """Median time of a step in seconds, with its interval; None without steps."""
        return stats.median(np.array(self.step_s[self.counted]))

    @property
    def waiting(self) -> float | None:
        """Share of the time that was spent waiting for data."""
        total = sum(self.step_s[self.counted])
        return sum(self.wait_s[self.counted]) / total if total else None

    def rate(self, counts: list[int]) -> float | None:
        """Samples or tokens per second; None where none were counted."""
        total, number = sum(self.step_s[self.counted]), sum(counts[self.counted])
        return number / total if total and number else None

    def describe(self) -> str:
        """One line for people."""
        if self.step is None or self.waiting is None:
            return "no step was seen"
        rate = self.rate(self.samples)
        speed = f"{rate:.4g} samples/s" if rate else f"{1 / self.step.value:.4g} steps/s"
        step = f"{self.step.value * 1e3:.4g} ms a step (median)"
        return f"{speed}, {step}, {self.waiting:.0%} of it waiting for data ({len(self.step_s)} steps)"
