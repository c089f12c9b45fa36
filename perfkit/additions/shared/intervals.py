"""Arithmetic on sets of half-open time intervals, for additions. With integers, such as ns, it is exact."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Spans:
    """Sorted, disjoint intervals."""

    start: Ints
    end: Ints

    @property
    def total(self) -> int:
        """The total length in ns."""
        return int((self.end - self.start).sum())

    def pairs(self) -> list[tuple[float, float]]:
        """The start and end of each interval."""
        return [*zip(self.start.tolist(), self.end.tolist(), strict=True)]

    def within(self, start: Ints, end: Ints) -> Ints:
        """The length inside each window [start, end), int64[M] ns; floats are exact within 104 days of 0."""
        # The length covered before each edge: of [2, 5) and [7, 8) it is 0 at 2, 3 at 5 and at 7, 4 at 8.
        edges = np.append(-1, np.stack((self.start, self.end), axis=1))
        covered = np.repeat(np.append(0, np.cumsum(self.end - self.start)), 2)[:-1]
        before, upto = np.interp([start, end], edges, covered).astype(np.int64)
        return upto - before  # type: ignore[no-any-return]

    def common(self, other: "Spans") -> int:
        """The length of the intersection with `other`, in ns."""
        return int(other.within(self.start, self.end).sum())


def merge(start: Ints, end: Ints, least: int = 0) -> Spans:
    """The union of intervals in any order. Gaps up to `least` are filled."""
    keep = end > start
    if not keep.any():
        return Spans(start[keep], end[keep])
    order = np.argsort(start[keep], kind="stable")
    start = start[keep][order]
    reach = np.maximum.accumulate(end[keep][order])
    begins_anew = start[1:] > reach[:-1] + least
    is_first = np.append(True, begins_anew)
    is_last = np.append(begins_anew, True)
    return Spans(start[is_first], reach[is_last])


def union(*parts: Spans) -> Spans:
    """The union of several sets."""
    return merge(np.concatenate([part.start for part in parts]), np.concatenate([part.end for part in parts]))


def partition(layers: Iterable[Spans], start: Ints, end: Ints) -> Ints:
    """Divides disjoint windows among layers, earlier ones first: int64[L + 1, M]; the last row is the rest.

    Layer i gets |U_i ∩ window| - |U_(i-1) ∩ window|, where U_i is the union of the first i layers. The sum
    telescopes, so it equals the window exactly.
    """
    combined, covered = merge(start[:0], end[:0]), [np.zeros(len(start), np.int64)]
    for layer in layers:
        combined = union(combined, layer)
        covered.append(combined.within(start, end))
    return np.diff([*covered, end - start], axis=0)


def gaps(busy: Spans, start: int, end: int) -> Spans:
    """The parts of the window [start, end) outside `busy`."""
    begin = np.append(start, np.clip(busy.end, start, end))
    finish = np.append(np.clip(busy.start, start, end), end)
    return Spans(begin[finish > begin], finish[finish > begin])
