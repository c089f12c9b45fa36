"""The cards: the questions are in `data/puzzles/drills.toml`, and the answers are recordings."""

import functools
from typing import Any, NamedTuple

import msgspec

from perfkit import machine
from perfkit.additions.lanes.figures import DrawnSide, Lanes
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe, Value
from perfkit.results.stats import Ratio

LIMITS = {"data": "the data", "transfer": "the copy", "host": "the host", "device": "the device"}
"""The bottlenecks of chapter 01, with the labels of their buttons."""
FULL = 0.85  # of a step: kernels that run at least this share of it fill their row


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A card as it is written: a loop, and three changes of it by the labels of their buttons."""

    chapter: str
    device: str
    settings: dict[str, Value]
    tries: dict[str, dict[str, Value]]
    why: str
    host: str = "article"  # of a simulated GPU; see `perfkit run --help`
    options: dict[str, Any] = {}  # of the workload

    @property
    def recipe(self) -> Recipe:
        """The recipe of the loop that is shown."""
        return Recipe.from_dict(self.settings)


class Recorded(msgspec.Struct, frozen=True):
    """The answers: the loop before and after its best change, and the gain of each change."""

    source: str
    lanes: Lanes
    gains: dict[str, Ratio]

    @property
    def best(self) -> str:
        """The change with the largest gain."""
        return max(self.gains, key=lambda name: self.gains[name].ratio)

    @property
    def bound(self) -> float:
        """The most that the loop can gain without shorter kernels, as a ratio of speeds."""
        side = self.lanes.sides[0]
        return side.step_ms / side.computing_ms

    @property
    def limit(self) -> str:
        """The bottleneck, a key of `LIMITS`."""
        return limit(self.lanes.sides[0])


def limit(side: DrawnSide) -> str:
    """What limits steps: kernels, if they fill their row; else what happens in the gaps between them."""
    if side.computing_ms >= FULL * side.step_ms:
        return "device"
    loads = [bar for bar in side.rows.get("host", []) if bar.kind in ("load", "wait") and bar.words != "copy"]
    bars = {"data": loads, "transfer": side.rows.get("copy", [])}
    lost_ms = dict.fromkeys(bars, 0.0)
    for start, end in side.idle:
        for name, some in bars.items():
            shared = [min(end, bar.end_ms) - max(start, bar.start_ms) for bar in some]
            lost_ms[name] += max([0.0, *shared])
    is_launching = sum(lost_ms.values()) < (side.step_ms - side.computing_ms) * side.steps / 2
    return "host" if is_launching else max(lost_ms, key=lost_ms.__getitem__)


class Card(NamedTuple):
    """A card with its number, counted from 1."""

    number: int
    asked: Asked
    recorded: Recorded


@functools.cache
def asked() -> list[Asked]:
    """The questions of all cards, in the order of the course."""
    data = msgspec.toml.decode(machine.shipped("puzzles/drills.toml").read_bytes())
    return msgspec.convert(data["card"], type=list[Asked])


def card(number: int) -> Card:
    """A card by its number; an `InvalidValue` if there is none."""
    count = len(asked())
    if not 1 <= number <= count:
        raise InvalidValue(f"there is no drill {number}", f"They are numbered from 1 to {count}")
    file = machine.shipped("recordings/drills") / f"{number}.json"
    return Card(number, asked()[number - 1], msgspec.json.decode(file.read_bytes(), type=Recorded))
