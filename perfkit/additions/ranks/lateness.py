"""Who is late: the rank that waits least for the others, step by step.

Ranks meet in each exchange, so all their steps take the same time, and a rank that has less to do looks as if
its backward pass were long: there it waits. What all ranks spend in exchanges is communication; what a rank
spends beyond the one that spends least is waiting for that one.
"""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

import msgspec

from perfkit.additions.ranks.messages import PARTS, State, StepOfRank

EXCHANGE = PARTS.index("exchange")
OUTSIDE = ("evaluation", "checkpoint", "new epoch")
"""What may be in some steps only."""
_SKIPPED = 3
"""First steps, in which memory is allocated and code is loaded."""
_LEAST, _DOMINATES, _AT_TIMES, _MOST_OF_IT = 0.1, 0.7, 0.35, 0.8
"""Of the time: what is worth a word; the part of the waiting that one rank causes, to be the late one; the
part of the steps with most of the waiting, below which it is late at times."""
_FEWEST = 5


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """A mean step of a rank, in seconds: its parts without the exchange, then what the exchange consists of.

    `for_others`: waiting for the rank that is latest; `exposed`, `hidden`: communication that all have, and
    that which runs while the rank computes.
    """

    rank: int
    samples_per_s: float
    parts: list[float]
    for_others: float
    exposed: float
    hidden: float
    elements: float
    outside: dict[str, int] = {}


class Lateness(msgspec.Struct, frozen=True, kw_only=True):
    """Who keeps the others waiting, if it is one rank.

    `share`: of the time of all steps that the other ranks wait for the late one, on average. `by_s`: a step;
    `at_times`: in so `few` steps, with this (`evaluation`, `checkpoint`, `new epoch`, or nothing that was
    seen) in them. `in_turn`: no rank is late for long, yet they wait; `longest`: in how many of the
    steps the latest rank is the one with the longest inputs.
    """

    steps: int
    step_s: float
    spent: list[Spent]
    late: int | None = None
    share: float = 0.0
    by_s: float = 0.0
    at_times: bool = False
    few: int = 0
    mark: str = ""
    part: str = ""
    in_turn: float = 0.0
    longest: float = 0.0

    @property
    def exposed_share(self) -> float:
        """The share of a step in which all ranks only communicate."""
        return fmean(spent.exposed for spent in self.spent) / max(self.step_s, 1e-9)


def lateness(states: Sequence[State]) -> Lateness | None:
    """What the steps that all ranks have taken say; None if there are too few."""
    known = [_filled(state.steps) for state in states]
    numbers = set.intersection(*(set(steps) for steps in known)) if known else set()
    numbers = {number for number in numbers if number > _SKIPPED}
    if len(numbers) < _FEWEST:
        return None
    table = [[steps[number] for steps in known] for number in sorted(numbers)]
    waits = [_waits(steps) for steps in table]
    step_s = fmean(max(step.seconds for step in steps) for steps in table)
    spent = [_spent(state.rank, at, table, waits) for at, state in enumerate(states)]
    found = Lateness(steps=len(table), step_s=step_s, spent=spent)
    if len(states) == 1:
        return found
    lost = [max(each) for each in waits]
    causing = [each.index(min(each)) for each in waits]
    by_rank = [
        sum(s for s, late in zip(lost, causing, strict=True) if late == at) for at in range(len(states))
    ]
    total, whole_s = sum(lost), step_s * len(table)
    worst = by_rank.index(max(by_rank))
    others = [fmean(each[at] for at in range(len(states)) if at != worst) for each in waits]
    share = sum(others) / whole_s
    if total / whole_s < _LEAST:
        return found
    if by_rank[worst] < _DOMINATES * total or share < _LEAST:
        return _in_turn(found, table, causing, total / whole_s)
    few = _steps_with_most(lost)
    at_times = len(few) <= _AT_TIMES * len(table)
    marks = Counter(mark for at in few for mark in table[at][worst].marks if mark in OUTSIDE)
    return msgspec.structs.replace(
        found,
        late=states[worst].rank,
        share=share,
        by_s=sum(others[at] for at in few) / len(few) if at_times else share * step_s,
        at_times=at_times,
        few=len(few) if at_times else 0,
        mark=marks.most_common(1)[0][0] if at_times and marks else "",
        part=_longer_part(spent, worst),
    )


def _filled(steps: Sequence[StepOfRank]) -> dict[int, StepOfRank]:
    """Steps by number; an exchange of gradients that was not read takes as long as it usually does."""
    read = [step for step in steps if step.is_read and step.syncs]
    filled = {step.number: step for step in steps}
    for step in steps:
        if not step.is_read and read:
            near = min(read, key=lambda other: abs(other.number - step.number))
            parts, backward = list(step.parts), PARTS.index("backward")
            moved = min(parts[backward], near.parts[EXCHANGE])
            parts[backward] -= moved
            parts[EXCHANGE] += moved
            changes = {"parts": parts, "hidden": near.hidden, "syncs": near.syncs}
            filled[step.number] = msgspec.structs.replace(step, **changes)
    return filled


def _waits(steps: Sequence[StepOfRank]) -> list[float]:
    """How long each rank waits for another one in this step."""
    exchange = [step.parts[EXCHANGE] for step in steps]
    return [seconds - min(exchange) for seconds in exchange]


def _spent(
    rank: int, at: int, table: Sequence[Sequence[StepOfRank]], waits: Sequence[Sequence[float]]
) -> Spent:
    own = [steps[at] for steps in table]
    for_others = fmean(each[at] for each in waits)
    marks = Counter(mark for step in own for mark in step.marks)
    return Spent(
        rank=rank,
        samples_per_s=sum(step.samples for step in own) / max(sum(step.seconds for step in own), 1e-9),
        parts=[fmean(step.parts[part] for step in own) for part in range(EXCHANGE)],
        for_others=for_others,
        exposed=fmean(step.parts[EXCHANGE] for step in own) - for_others,
        hidden=fmean(step.hidden for step in own),
        elements=fmean(step.elements for step in own),
        outside=dict(marks),
    )


def _steps_with_most(lost: Sequence[float]) -> list[int]:
    """The fewest steps that have most of the waiting."""
    order = sorted(range(len(lost)), key=lambda at: -lost[at])
    total, sum_s, few = sum(lost), 0.0, list[int]()
    for at in order:
        if sum_s >= _MOST_OF_IT * total:
            break
        few.append(at)
        sum_s += lost[at]
    return few


def _longer_part(spent: Sequence[Spent], worst: int) -> str:
    """The part of a step that takes longer on the late rank than on the others, most of all."""
    more = [
        spent[worst].parts[part] - fmean(each.parts[part] for at, each in enumerate(spent) if at != worst)
        for part in range(EXCHANGE)
    ]
    return PARTS[more.index(max(more))]


def _in_turn(
    found: Lateness, table: Sequence[Sequence[StepOfRank]], causing: Sequence[int], share: float
) -> Lateness:
    """Ranks that wait for each other, now for this one and then for that one."""
    lengths = [[step.elements for step in steps] for steps in table]
    unlike = [at for at, each in enumerate(lengths) if max(each) > 1.1 * min(each)]
    longest = sum(lengths[at][causing[at]] == max(lengths[at]) for at in unlike) / len(table)
    return msgspec.structs.replace(found, in_turn=share, longest=longest)
