"""Scores a learner's answers, and how well they estimate bounds."""

import math
from collections.abc import Mapping
from statistics import mean
from typing import Annotated

import msgspec

from perfkit.additions.drills import cards
from perfkit.additions.drills.cards import LIMITS, Card
from perfkit.additions.shared import kept
from perfkit.results.stats import Estimate
from perfkit.show import units
from perfkit.show.document import Bullets, Content, Notice, Table
from perfkit.show.style import BLUE, Figure, Look, Row

_CLOSE = 1.2  # a bound is right if it is off by at most this factor
_FILE = "drills.json"
_BEYOND = "It holds for this step. Shorter kernels gain more, and larger batches may: gains count samples."
_BOUND = Look("the picture's bound; the line leads to yours", BLUE)


class Given(msgspec.Struct, frozen=True):
    """An answer to a card: the limit, what to try first, and the bound."""

    limit: str
    first: str
    bound: Annotated[float, msgspec.Meta(gt=0)]  # as a ratio of speeds


def load() -> dict[int, Given]:
    """The first answer to each card, by its number."""
    return kept.load(_FILE, dict[int, Given], "the drills then begin again") or {}


def keep(number: int, given: Given) -> None:
    """Stores an answer, unless there is already one to this card."""
    with kept.alone(_FILE):
        if number not in (answers := load()):
            kept.save(_FILE, {**answers, number: given})


def points(card: Card, given: Given) -> list[bool]:
    """Whether the answer to each question is right."""
    is_close = 1 / _CLOSE <= given.bound / card.recorded.bound <= _CLOSE
    return [given.limit == card.recorded.limit, given.first == card.recorded.best, is_close]


def told(card: Card, given: Given | None) -> list[Content]:
    """What was measured for a card, and the points of an answer, if there is one."""
    recorded = card.recorded
    side = card.recorded.lanes.sides[0]
    share = f"kernels run for {units.number(side.computing_ms)} of {units.number(side.step_ms)} ms"
    lines = [
        f"The limit is {LIMITS[recorded.limit]}.",
        f"The best of the three is {recorded.best}.",
        f"The bound is {units.times(recorded.bound)}, because {share}. {_BEYOND}",
    ]
    notices = list[Notice]()
    if given:
        right = points(card, given)
        own = LIMITS[given.limit], given.first, units.times(given.bound)
        said = zip(right, own, lines, strict=True)
        lines = [f"{'✓' if is_right else '✗'} You said {answer}. {line}" for is_right, answer, line in said]
        notices = [Notice(f"{sum(right)} of 3 points")]
    mark = "~" if card.asked.device.startswith("sim:") else ""
    rows = [[name, mark + units.ratio(gain)] for name, gain in recorded.gains.items()]
    return [*notices, Bullets(lines), Table(("change", "times as many samples/s"), rows), card.asked.why]


def contents(answers: Mapping[int, Given]) -> list[Content]:
    """The points of all answered cards, and the calibration of their bounds."""
    if not answers:
        return ["No drill is answered yet: `pk.drill(1)` is the first."]
    bars = list[Row]()
    logs = list[float]()
    total = 0
    for number, given in sorted(answers.items()):
        card = cards.card(number)
        own, bound = given.bound, card.recorded.bound
        count = sum(points(card, given))
        total += count
        logs.append(math.log(own / bound))
        line = Estimate(own, min(own, bound), max(own, bound))
        words = f"{count} of 3 points\nyou {units.times(own)}, picture {units.times(bound)}"
        bars.append(Row(f"drill {number}", [(bound, _BOUND)], words, line))
    answered = f"{len(answers)} of {len(cards.asked())} drills answered"
    said = f"Your bounds are off by a factor of {math.exp(mean(map(abs, logs))):.2f} on average"
    lean = mean(logs)
    if abs(lean) > 0.05:
        said += f", and {'too high' if lean > 0 else 'too low'} as a rule"
    picture = Figure("calibration", "Your bounds, and those of the pictures", bars, "times as fast")
    return [Notice(f"{total} of {3 * len(answers)} points; {answered}"), f"{said}.", picture]
