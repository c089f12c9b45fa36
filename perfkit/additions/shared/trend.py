"""Whether steps get slower, and how: with every step, within each epoch, or from some step on."""

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec
import numpy as np

_FEWEST = 12  # values: with fewer there is no result
_MOST_USED = 400  # values for a slope, whose cost is quadratic
_GROWS, _JUMPS = 1.25, 1.5  # ratios of the last third to the first that count as a change


class Trend(msgspec.Struct, frozen=True):
    """How a value changes with the steps: `trend` of `watch` in docs/json.md."""

    kind: str
    first: float
    last: float
    per_step: float = 0.0
    low: float = 0.0
    high: float = 0.0
    at: int = 0


def trend(numbers: Sequence[int], values: Sequence[float], epochs: Sequence[int] = ()) -> Trend | None:
    """The trend of values over the numbers of their steps, some of which began `epochs`; None if too few."""
    if len(values) < _FEWEST:
        return None
    every = math.ceil(len(values) / _MOST_USED)
    x, y = np.asarray(numbers[::every], float), np.asarray(values[::every], float)
    if tooth := _saw_tooth(x, y, epochs):
        return tooth
    from scipy import stats as scipy_stats  # here, so that a watched script does not import it at its start

    first, last = _thirds(y)
    slope, start, low, high = map(float, scipy_stats.theilslopes(y, x))
    at = _jump(y, start + slope * x) if last >= _JUMPS * first else 0
    if at:
        return Trend("jumps", float(np.median(y[:at])), float(np.median(y[at:])), at=int(x[at]))
    is_growing = low > 0 and last >= _GROWS * first
    return Trend("grows" if is_growing else "steady", first, last, slope, low, high)


def _thirds(values: np.ndarray) -> tuple[float, float]:
    third = max(1, len(values) // 3)
    return float(np.median(values[:third])), float(np.median(values[-third:]))


def _saw_tooth(x: np.ndarray, y: np.ndarray, epochs: Sequence[int]) -> Trend | None:
    """A saw-tooth: values grow in each of two or more epochs, and fall back at the end of each."""
    parts = np.split(y, np.searchsorted(x, sorted(epochs)))
    ends = [_thirds(part) for part in parts if len(part) >= _FEWEST // 2]
    falls = all(after[0] * _GROWS <= before[1] for before, after in itertools.pairwise(ends))
    if len(ends) < 2 or not falls or any(last < _GROWS * first for first, last in ends):
        return None
    return Trend("saw-tooth", statistics.median(a for a, _ in ends), statistics.median(b for _, b in ends))


def _jump(values: np.ndarray, line: np.ndarray) -> int:
    """The index where one level becomes another, if two levels fit the values better than a line; else 0."""
    errors = {}
    for cut in range(3, len(values) - 2):
        levels = values[:cut], values[cut:]
        errors[cut] = sum(float(np.abs(level - np.median(level)).sum()) for level in levels)
    best = min(errors, key=errors.__getitem__)
    return best if errors[best] < float(np.abs(values - line).sum()) / 2 else 0
