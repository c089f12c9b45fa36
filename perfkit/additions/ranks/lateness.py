"""Who is late: the rank that waits least for the others, step by step.

Ranks meet in each exchange, so their steps take the same time: one that has less to do waits, as if its
backward pass were long. What all exchange is communication; what one spends beyond the least is waiting.
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


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """A mean step of a rank, in seconds: its parts without the exchange, and what that consists of."""

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
    spent: list[Spent]
    late: int | None = None  # the rank that is late
    share: float = 0.0  # of the time of all steps, in which the other ranks wait for it on average
    often: float = 0.0  # the share of the steps in which it is the latest
    by_s: float = 0.0  # how late it is in a step
    at_times: bool = False  # whether it is late in few steps only
    few: int = 0  # how many these are
    mark: str = ""  # what is in most of them, such as an evaluation; empty if nothing was seen
    part: str = ""  # of a step, in which it spends more than the others
    in_turn: float = 0.0  # the share of its time that a rank waits on average, though none is late for long
    longest: float = 0.0  # the share of the steps in which the latest rank has the longest inputs

    @property
    def share_of_equal(self) -> float:
        """The share of the time that ranks would save if each did as much of what makes one late."""
        return self.share * (len(self.spent) - 1) / len(self.spent)

    @property
    def exposed_share(self) -> float:
        """The share of a step in which all ranks only communicate."""
        return fmean(spent.exposed for spent in self.spent) / max(self.step_s, 1e-9)

    @property
    def has_more_to_compute(self) -> bool:
        """Whether the inputs of the rank that is late in its computing are larger, or its rows longer."""
        if self.at_times or self.part not in COMPUTES:
            return False
        here, there = self.compared(lambda spent: spent.elements)
        rows, others = self.compared(lambda spent: spent.rows)
        are_longer = 0 < LIMIT.unlike * rows <= others and LIMIT.unlike * here > there
        return bool(are_longer or 0 < LIMIT.unlike * there <= here)

    def compared(self, value: Callable[[Spent], float]) -> tuple[float, float]:
        """That of the late rank, and of the others."""
        others = [value(spent) for spent in self.spent if spent.rank != self.late]
        return next(value(spent) for spent in self.spent if spent.rank == self.late), fmean(others)


def lateness(states: Sequence[State]) -> Lateness | None:
    """What the steps that all ranks have taken say; None if there are too few, or they are not the same."""
    known = [{step.number: step for step in state.steps} for state in states]
    numbers = {number for number in set.intersection(*map(set, known)) if number > LIMIT.skipped}
    if len(numbers) < LIMIT.fewest_steps or are_apart(states):
        return None
    table = [[steps[number] for steps in known] for number in sorted(numbers)]
    exchange = np.array([[step.parts[EXCHANGE] for step in steps] for steps in table])
    waits = exchange - exchange.min(axis=1, keepdims=True)
    step_s = max(fmean(steps[at].seconds for steps in table) for at in range(len(states)))
    spent = [
        _spent(state.rank, [steps[at] for steps in table], float(waits[:, at].mean()))
        for at, state in enumerate(states)
    ]
    found = Lateness(steps=len(table), step_s=step_s, spent=spent)
    lost = waits.sum(axis=1) / max(1, len(states) - 1)  # by each of the others: the latest waits for nobody
    if lost.mean() < LIMIT.least * step_s:
        return found
    latest = exchange.argmin(axis=1)
    by_rank = np.bincount(latest, weights=lost, minlength=len(states))
    worst = int(by_rank.argmax())
    caused = np.where(latest == worst, lost, 0.0)
    share = float(caused.mean()) / step_s
    if by_rank[worst] < LIMIT.dominates * lost.sum() or share < LIMIT.least:
        return _in_turn(found, table, latest, float(waits.mean()) / step_s)
    few = few_with_most(caused)
    marks = Counter(mark for at in few for mark in table[at][worst].marks if mark in LIMIT.outside)
    parts = np.array([each.parts for each in spent])
    mark, count = marks.most_common(1)[0] if marks else ("", 0)
    return msgspec.structs.replace(
        found,
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
    """Whether a rank is far behind, as where its batches have run out: its steps are not those of others."""
    fewest = min(state.count for state in states)
    ahead_s = max(sum(step.seconds for step in state.steps if step.number > fewest) for state in states)
    return bool(ahead_s > LIMIT.apart_s)


def _spent(rank: int, own: Sequence[StepOfRank], for_others: float) -> Spent:
    usual = [step.samples for step in own if not step.marks]
    return Spent(
        rank=rank,
        samples_per_s=fmean(step.samples for step in own) / max(fmean(step.seconds for step in own), 1e-9),
        parts=[fmean(step.parts[part] for step in own) for part in range(EXCHANGE)],
        for_others=for_others,
        exposed=fmean(step.parts[EXCHANGE] for step in own) - for_others,
        hidden=fmean(step.hidden for step in own),
        elements=fmean(step.elements for step in own),
        rows=median(usual or [0]),
    )


def few_with_most(seconds: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The steps that have most of the time, if they are few: it is then taken at times; else none."""
    order = np.argsort(-seconds, kind="stable")
    most = order[: np.searchsorted(np.cumsum(seconds[order]), LIMIT.most_of_it * seconds.sum()) + 1]
    if most.size > LIMIT.at_times * seconds.size:
        return most[:0]
    return np.flatnonzero(seconds >= np.median(seconds[most]) / 2)  # the others of their kind, too


def _in_turn(found: Lateness, table: list[list[StepOfRank]], latest: Any, share: float) -> Lateness:
    longest = list[bool]()
    for steps, late in zip(table, latest, strict=True):
        lengths = [step.elements for step in steps]
        are_unlike = max(lengths) > 1.1 * min(lengths)
        longest.append(are_unlike and lengths[late] == max(lengths))
    return msgspec.structs.replace(found, in_turn=share, longest=fmean(longest))
