"""Arithmetic on sets of time intervals, in integer nanoseconds, so that sums are exact.

Every figure of a breakdown is the length of a union of half-open intervals [start, end) within a
window. A union is kept merged (sorted, disjoint) with the running sum of its lengths, so that its
length within any number of windows is two binary searches each.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Spans:
    """A merged union. `start`, `end`: int64[N] ns; `before`: int64[N+1], length of the first i."""

    start: Ints
    end: Ints
    before: Ints

    @property
    def total(self) -> int:
        """Length of the union in ns."""
        return int(self.before[-1])

    def upto(self, time: Ints) -> Ints:
        """Length of the union before each time (int64[M] ns)."""
        if not len(self.start):
            return np.zeros(len(time), np.int64)
        index = np.searchsorted(self.start, time, "right")
        over = np.maximum(self.end[index - 1] - time, 0)
        return self.before[index] - np.where(index > 0, over, 0)

    def within(self, start: Ints, end: Ints) -> Ints:
        """Length of the union inside each window [start, end), int64[M] ns."""
        return self.upto(end) - self.upto(start)


def merge(start: Ints, end: Ints) -> Spans:
    """The union of any intervals (unsorted, overlapping, empty ones are dropped)."""
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        empty = np.zeros(0, np.int64)
        return Spans(empty, empty, np.zeros(1, np.int64))
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    starts, ends = start[first], reach[last]
    return Spans(starts, ends, np.concatenate(([0], np.cumsum(ends - starts))))


def union(parts: Iterable[Spans]) -> Spans:
    """The union of unions."""
    parts = list(parts)
    if not parts:
        return merge(np.zeros(0, np.int64), np.zeros(0, np.int64))
    return merge(np.concatenate([p.start for p in parts]), np.concatenate([p.end for p in parts]))


def partition(layers: Sequence[Spans], start: Ints, end: Ints) -> Ints:
    """Divides disjoint windows among layers; earlier layers have priority.

    Layer i gets |(R_i minus all earlier) ∩ window| = |U_i ∩ window| - |U_(i-1) ∩ window| where U_i is the
    union of the first i layers; the sum telescopes, so it equals the window exactly.

    Args:
        layers: L unions in order of priority.
        start: int64[M] ns, window starts.
        end: int64[M] ns, window ends.

    Returns:
        int64[L + 1, M] ns: a row per layer, and a last one for the rest.
    """
    seen, covered, parts = union([]), np.zeros(len(start), np.int64), []
    for layer in layers:
        seen = union((seen, layer))
        now = seen.within(start, end)
        parts.append(now - covered)
        covered = now
    return np.stack([*parts, end - start - covered])


def gaps(busy: Spans, start: int, end: int) -> tuple[Ints, Ints]:
    """The parts of the window [start, end) outside `busy`: starts and ends, ns."""
    low, high = np.searchsorted(busy.end, start, "right"), np.searchsorted(busy.start, end, "left")
    begin = np.concatenate(([start], np.minimum(busy.end[low:high], end)))
    finish = np.concatenate((np.maximum(busy.start[low:high], start), [end]))
    keep = finish > begin
    return begin[keep], finish[keep]


def weighted(start: Ints, end: Ints, value: Floats) -> tuple[Ints, Floats]:
    """The running integral of the sum of overlapping values, capped at 1.

    Returns:
        times int64[K] ns and the integral of min(sum of values, 1) up to each time, in ns.
    """
    times = np.concatenate((start, end))
    order = np.argsort(times, kind="stable")
    times = times[order]
    height = np.cumsum(np.concatenate((value, -value))[order])
    area = np.clip(height[:-1], 0.0, 1.0) * np.diff(times)
    return times, np.concatenate(([0.0], np.cumsum(area)))
