"""Who is late: the rank that waits least for the others, step by step.

Ranks meet in each exchange, so their steps take the same time: a rank with less to do waits, as if its
backward pass were long. The least exchange of all ranks is communication; the rest is waiting.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

import msgspec
import numpy as np

from perfkit.additions.ranks.messages import LIMIT, PARTS, State, StepOfRank

EXCHANGE = PARTS.index("exchange")
COMPUTES = ("forward", "backward")  # parts of a step that take longer with larger inputs


class MeanStep(msgspec.Struct, frozen=True, kw_only=True):
    """A mean step of a rank, in seconds; the exchange is divided into waiting, exposed and hidden time."""

    rank: int
    samples_per_s: float
    parts: list[float]
    for_others: float  # waiting for the rank that is latest
    exposed: float  # communication that all ranks have
    hidden: float  # communication while the rank computes
    elements: float  # of its inputs
    rows: float = 0.0


class Lateness(msgspec.Struct, frozen=True, kw_only=True):
    """Who keeps the others waiting, if it is one rank."""

    steps: int
    step_s: float
    spent: list[MeanStep]
    late: int | None = None  # the rank that is late
    share: float = 0.0  # of the time of all steps, in which the other ranks wait for it on average
    often: float = 0.0  # the share of the steps in which it is the latest
    by_s: float = 0.0  # how late it is in a step
    at_times: bool = False  # whether it is late in few steps only
    few: int = 0  # the number of these steps
    mark: str = ""  # what is in most of them, such as an evaluation; empty if nothing was seen
    part: str = ""  # of a step, in which it spends more than the others
    in_turn: float = 0.0  # the share of its time that a rank waits on average, though none is late for long
    longest: float = 0.0  # the share of the steps in which the latest rank has the longest inputs

    @property
    def share_of_equal(self) -> float:
        """The share of the time that is saved if all ranks divide the extra work of the late one."""
        return self.share * (len(self.spent) - 1) / len(self.spent)

    @property
    def exposed_share(self) -> float:
        """The share of a step in which all ranks only communicate."""
        return fmean(mean.exposed for mean in self.spent) / max(self.step_s, 1e-9)

    @property
    def has_more_to_compute(self) -> bool:
        """Whether the inputs of the rank that computes longest are larger, or its rows longer."""
        if self.at_times or self.part not in COMPUTES:
            return False
        elements, usual_elements = self.compare(lambda mean: mean.elements)
        rows, usual_rows = self.compare(lambda mean: mean.rows)
        are_larger = 0 < LIMIT.unlike * usual_elements <= elements
        are_longer = 0 < LIMIT.unlike * rows <= usual_rows and LIMIT.unlike * elements > usual_elements
        return bool(are_larger or are_longer)

    def compare(self, value: Callable[[MeanStep], float]) -> tuple[float, float]:
        """The value of the late rank, and the mean of the others."""
        others = [value(mean) for mean in self.spent if mean.rank != self.late]
        return next(value(mean) for mean in self.spent if mean.rank == self.late), fmean(others)


def lateness(states: Sequence[State]) -> Lateness | None:
    """Compares the steps that all ranks have taken; None if they are too few, or not the same."""
    steps_by_rank = [{step.number: step for step in state.steps} for state in states]
    common = set.intersection(*map(set, steps_by_rank))
    numbers = sorted(number for number in common if number > LIMIT.skipped)
    if len(numbers) < LIMIT.fewest_steps or are_apart(states):
        return None
    table = [[steps[number] for steps in steps_by_rank] for number in numbers]
    exchange = np.array([[step.parts[EXCHANGE] for step in steps] for steps in table])
    waits = exchange - exchange.min(axis=1, keepdims=True)
    columns = list(zip(*table, strict=True))
    step_s = max(fmean(step.seconds for step in steps) for steps in columns)
    means = [
        _mean_step(state.rank, steps, float(waits[:, index].mean()))
        for index, (state, steps) in enumerate(zip(states, columns, strict=True))
    ]
    result = Lateness(steps=len(table), step_s=step_s, spent=means)
    lost = waits.sum(axis=1) / max(1, len(states) - 1)  # by each of the others: the latest waits for nobody
    if lost.mean() < LIMIT.least * step_s:
        return result
    latest = exchange.argmin(axis=1)
    by_rank = np.bincount(latest, weights=lost, minlength=len(states))
    worst = int(by_rank.argmax())
    caused = np.where(latest == worst, lost, 0.0)
    share = float(caused.mean()) / step_s
    if by_rank[worst] < LIMIT.dominates * lost.sum() or share < LIMIT.least:
        return _late_in_turn(result, table, latest, float(waits.mean()) / step_s)
    few = few_with_most(caused)
    marks = Counter(mark for index in few for mark in table[index][worst].marks if mark in LIMIT.outside)
    parts = np.array([mean.parts for mean in means])
    mark, count = marks.most_common(1)[0] if marks else ("", 0)
    return msgspec.structs.replace(
        result,
        late=states[worst].rank,
        share=share,
        often=float((latest == worst).mean()),
        by_s=float(caused[few].mean()) if few.size else share * step_s,
        at_times=few.size > 0,
        few=few.size,
        mark=mark if count > few.size / 2 else "",
        part=PARTS[(parts[worst] - parts.mean(axis=0)).argmax()],
    )


def are_apart(states: Sequence[State]) -> bool:
    """Whether a rank is far behind, as when its batches run out: then steps of equal numbers differ."""
    fewest = min(state.count for state in states)
    ahead_s = max(sum(step.seconds for step in state.steps if step.number > fewest) for state in states)
    return bool(ahead_s > LIMIT.apart_s)


def _mean_step(rank: int, steps: Sequence[StepOfRank], for_others: float) -> MeanStep:
    samples = [step.samples for step in steps if not step.marks]
    mean_s = fmean(step.seconds for step in steps)
    return MeanStep(
        rank=rank,
        samples_per_s=fmean(step.samples for step in steps) / max(mean_s, 1e-9),
        parts=[fmean(step.parts[part] for step in steps) for part in range(EXCHANGE)],
        for_others=for_others,
        exposed=fmean(step.parts[EXCHANGE] for step in steps) - for_others,
        hidden=fmean(step.hidden for step in steps),
        elements=fmean(step.elements for step in steps),
        rows=median(samples or [0]),
    )


def few_with_most(seconds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Indices of the steps that take most of the time, if they are few; empty if the time is spread."""
    order = np.argsort(-seconds, kind="stable")
    most = order[: np.searchsorted(np.cumsum(seconds[order]), LIMIT.most_of_it * seconds.sum()) + 1]
    if most.size > LIMIT.at_times * seconds.size:
        return most[:0]
    return np.flatnonzero(seconds >= np.median(seconds[most]) / 2)  # with others of the same kind


def _late_in_turn(result: Lateness, table: list[list[StepOfRank]], latest: Any, share: float) -> Lateness:
    """The result for ranks that keep each other waiting: does the one with the longest inputs come last?"""
    elements = np.array([[step.elements for step in steps] for steps in table])
    are_unlike = elements.max(axis=1) > 1.1 * elements.min(axis=1)
    is_longest = elements[np.arange(len(table)), latest] == elements.max(axis=1)
    longest = float((are_unlike & is_longest).mean())
    return msgspec.structs.replace(result, in_turn=share, longest=longest)
