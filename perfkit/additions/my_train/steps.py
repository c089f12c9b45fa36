"""The versions of `my_train.py` that were kept, each with what it gained, and the lines of the course."""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from perfkit import machine
from perfkit.additions.scripts.messages import SETTABLE
from perfkit.additions.shared import kept
from perfkit.errors import one_of
from perfkit.machine import devices
from perfkit.recipe import Recipe, Value, parse_settings
from perfkit.results.stats import Ratio, judged
from perfkit.show import units
from perfkit.show.style import BLUE, Figure, Look, Row

NAME = "my_train.py"
HERE = Path(NAME)  # in the working directory
PHOTOS = 256  # JPEG files that it trains on
_FILE = "my_train/climb.json"
_MULTIPLIED = Look("gains multiplied", BLUE)
_AT_ONCE = Look("measured at once", BLUE, "//")
_LONG = 44  # characters of a line that fit next to a bar
_OF_COPIES = re.compile(r",\s*(pin_memory|non_blocking)=([^,()]|\([^()]*\))+")  # arguments


class Version(msgspec.Struct, frozen=True):
    """A file that was kept. `switches` are set outside the file. `rate`: of the first one, once measured."""

    text: str
    switches: dict[str, Value] = {}
    what: str = "the plain loop"
    gain: Ratio | None = None  # against the version before
    rate: float | None = None
    place: str = ""  # of the file; "" in climbs that were stored without it


def load(file: Path | None = HERE) -> list[Version]:
    """The versions of a file in their order, none before the first; with None, those of all files."""
    stored = kept.load(_FILE, list[Version], 'pk.my_train(restore="00") then starts the climb again') or []
    return [version for version in stored if file is None or version.place in ("", str(file.resolve()))]


def save(versions: Sequence[Version], file: Path = HERE) -> list[Version]:
    """Keeps the versions of a file for other notebooks and later days, and returns them; others stay."""
    place = str(file.resolve())
    with kept.alone(_FILE):
        others = [version for version in load(None) if version.place not in ("", place)]
        kept.save(_FILE, [*others, *(msgspec.structs.replace(version, place=place) for version in versions)])
    return [*versions]


def edits(of: str = "edit") -> list[dict[str, str]]:
    """The lines of the course: `chapter`, `what`, `old`, `new`; `of="outside"`: what is set outside it."""
    text = machine.shipped("scripts/my_train.toml").read_bytes()
    return msgspec.toml.decode(text, type=dict[str, list[dict[str, str]]])[of]


def outside(chapter: str, own: Mapping[str, Value]) -> dict[str, Value]:
    """What is set outside the file: by the chapters up to this one, on a CPU, and by the learner."""
    for name in own:  # before they are stored: from then on, each measurement has them
        if name not in SETTABLE:
            raise one_of(name, SETTABLE, "switch that is set outside the file")
    Recipe().replace(**own)
    course = edits("outside")
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


def can_act(before: Version, now: Version) -> bool:
    """Whether an edit changes anything here: on a CPU, no batch is copied to a device."""
    old, new = (_OF_COPIES.sub("", version.text) for version in (before, now))
    return old != new or before.switches != now.switches or bool(devices.accelerators().cuda)


def named(before: Version, now: Version) -> str:
    """A change in a few words: `02 a worker, sleeping threads`; for a learner's own line, its end."""
    known = {change["switch"]: (change["chapter"], change["what"]) for change in edits("outside")}
    old = before.switches
    outside = [f"{name}={value}" for name, value in now.switches.items() if value != old.get(name)]
    text = before.text
    changes = list[tuple[str, str]]()
    for edit in edits():
        if edit["new"] in now.text and edit["new"] not in before.text:
            text = text.replace(edit["old"], edit["new"])
            changes.append((edit["chapter"], edit["what"]))
    if text != now.text:
        added = [line[1:].strip() for line in diff(before.text, now.text).splitlines() if line[:1] == "+"]
        line = units.clean(added[0]) if added else "lines removed"
        end = line[-_LONG:]  # the start of a long line is that of the line before
        changes = [("", line if line == end else f"… {end.partition(' ')[2] or end}")]
    words = list[str]()
    last = ""
    for chapter, what in dict.fromkeys([*changes, *(known.get(each, ("", each)) for each in outside)]):
        words.append(what if chapter in ("", last) else f"{chapter} {what}")
        last = chapter
    return ", ".join(words)


def chart(versions: Sequence[Version], whole: Ratio | None = None) -> Figure:
    """The climb: the gains so far, multiplied, and each edit's own; `whole`: all edits measured at once."""
    first = versions[0]
    gains = list[Ratio]()
    bar = [(1.0, _MULTIPLIED)] if len(versions) > 1 or whole else []
    rate = f"{units.number(first.rate)} samples/s" if first.rate else ""
    rows = [Row(first.what, bar, rate, climbs=bool(bar))]
    for version in versions[1:]:
        if version.gain is None:
            rows.append(Row(version.what, (), "not measured: changes nothing here"))
            continue
        gains.append(version.gain)
        product = _product(gains)
        text = f"{units.ratio(product)}\nthis edit: {units.ratio(version.gain)}"
        rows.append(Row(version.what, [(product.ratio, _MULTIPLIED)], text, product, climbs=True))
    title = f"{NAME}: the gains multiply to {units.times(_product(gains).ratio)}" if gains else NAME
    if whole:
        title = f"{NAME}: {units.times(whole.ratio)} as fast as {first.what}"
        rows.append(Row("all of it", [(whole.ratio, _AT_ONCE)], units.ratio(whole), whole))
    unit = f"× {first.what}: gains multiplied, not measured together"
    return Figure("climb", title, rows, unit, "Nothing is kept yet.")


def _product(gains: Sequence[Ratio]) -> Ratio:
    """The product of gains that were measured independently: in logarithms, half-widths add by squares."""
    halves = [math.log(gain.high / gain.low) / 2 for gain in gains]
    return judged(sum(math.log(gain.ratio) for gain in gains), math.hypot(*halves), round_count=0)
