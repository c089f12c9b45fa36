"""The versions of `my_train.py` that were kept, each with what it gained, and the lines of the course."""

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence

import msgspec

from perfkit import machine
from perfkit.additions.shared import kept
from perfkit.errors import one_of
from perfkit.machine import devices
from perfkit.recipe import Value, parse_settings
from perfkit.results.stats import Ratio
from perfkit.show import units
from perfkit.show.style import BLUE, Figure, Look, Row

NAME = "my_train.py"
PHOTOS = 256  # JPEG files that it trains on
_FILE = "my_train/climb.json"
_RATE = Look("samples/s", BLUE)
_LONG = 44  # characters of a line that fit next to a bar
_OF_COPIES = re.compile(r",\s*(pin_memory|non_blocking)=([^,()]|\([^()]*\))+")  # arguments


class Version(msgspec.Struct, frozen=True):
    """A file that was kept. `switches` are set outside the file. `rate`: of the first one, once measured."""

    text: str
    switches: dict[str, Value] = {}
    what: str = "the plain loop"
    gain: Ratio | None = None  # against the version before
    rate: float | None = None


def load() -> list[Version]:
    """The versions in their order; none before the first."""
    return kept.load(_FILE, list[Version], 'pk.my_train(restore="00") then starts the climb again') or []


def save(versions: Sequence[Version]) -> None:
    """Keeps the versions for other notebooks and later days."""
    kept.save(_FILE, versions)


def edits() -> list[dict[str, str]]:
    """The lines of the course: `chapter`, `what`, `old`, `new`."""
    return _course()["edit"]


def _course() -> dict[str, list[dict[str, str]]]:
    """The edits, and what is set `outside` the file."""
    return tomllib.loads(machine.shipped("scripts/my_train.toml").read_text(encoding="utf-8"))


def outside(chapter: str, own: Mapping[str, Value]) -> dict[str, Value]:
    """What is set outside the file: by the chapters up to this one, on a CPU, and by the learner."""
    course = _course()["outside"]
    switches = parse_settings([each["switch"] for each in course if each["chapter"] <= chapter]) | dict(own)
    refused = parse_settings([each["switch"] for each in course]) if devices.accelerators().cuda else {}
    return {name: value for name, value in switches.items() if name not in refused}


def after(chapter: str) -> str:
    """The file with the lines of all chapters up to this one."""
    text = machine.shipped(f"scripts/{NAME}").read_text(encoding="utf-8")
    lines = edits()
    names = ["00", *dict.fromkeys(edit["chapter"] for edit in lines)]
    if chapter not in names:
        raise one_of(chapter, names, "chapter")
    for edit in lines:
        if edit["chapter"] <= chapter:
            text = text.replace(edit["old"], edit["new"])
    return text


def diff(old: str, new: str) -> str:
    """The lines that differ."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "before", "now", n=0, lineterm="")
    return "\n".join([*lines][2:])


def can_act(old: str, new: str) -> bool:
    """Whether an edit changes anything here: on a CPU, no batch is copied to a device."""
    before, now = (_OF_COPIES.sub("", text) for text in (old, new))
    return before != now or bool(devices.accelerators().cuda)


def named(old: str, new: str, switches: Mapping[str, Value]) -> str:
    """A change in a few words: `02 a worker, sleeping threads`; for a learner's own line, its end."""
    known = {change["switch"]: (change["chapter"], change["what"]) for change in _course()["outside"]}
    outside = [f"{name}={value}" for name, value in switches.items()]
    text, changes = old, list[tuple[str, str]]()
    for edit in edits():
        if edit["new"] in new and edit["new"] not in old:
            text = text.replace(edit["old"], edit["new"])
            changes.append((edit["chapter"], edit["what"]))
    if text != new:
        added = [line[1:].strip() for line in diff(old, new).splitlines() if line.startswith("+")]
        line = units.clean(added[0]) if added else "lines removed"
        end = line[-_LONG:]  # the start of a long line is that of the line before
        changes = [("", line if line == end else f"… {end.partition(' ')[2] or end}")]
    words, last = list[str](), ""
    for chapter, what in dict.fromkeys([*changes, *(known.get(each, ("", each)) for each in outside)]):
        words.append(what if chapter in ("", last) else f"{chapter} {what}")
        last = chapter
    return ", ".join(words)


def chart(versions: Sequence[Version], whole: Ratio | None = None) -> Figure:
    """The climb: the rate of each version, by the ratios since the first; `whole`: all edits at once."""
    rows, rate, total = list[Row](), versions[0].rate, 1.0
    for version in versions:
        if gain := version.gain:
            total *= gain.ratio
        text = f"{units.number(rate * total)} samples/s" if rate else ""
        text += f"\n{units.ratio(version.gain)}" if version.gain else ""
        bar = [(rate * total, _RATE)] if rate else []
        rows.append(Row(version.what, bar, text, climbs=bool(bar)))
    if whole and rate:
        text = f"{units.number(rate * whole.ratio)} samples/s\n{units.ratio(whole)}"
        rows.append(Row("all of it, measured at once", [(rate * whole.ratio, _RATE)], text))
        total = whole.ratio
    title = f"{NAME}: {units.times(total)} as fast as the plain loop" if len(versions) > 1 else NAME
    unit = "samples/s: the first rate × the ratios since"
    return Figure("climb", title, rows, unit, "Nothing is kept yet.")
