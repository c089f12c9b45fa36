"""Codes such as `02-1.42-3f9a-b01`: chapter, ratio, a digest of the run, and a digest of the code itself.

The last part detects typing errors. It is not a proof: anyone who wants to can make up a code.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from perfkit.errors import InvalidValue, one_of
from perfkit.results import Run, RunStore

STAGES = {
    "01": "baseline", "02": "data_loading", "03": "pinning", "04": "batch_size", "05": "uint8_copy",
    "06": "amp", "07": "compile", "08": "everything kept",
}  # fmt: skip
"""The stage with whose run each chapter ends."""
_CODE = re.compile(r"\b(\d\d)-(\d+\.\d\d|sim\d+\.\d\d|done|na)-([0-9a-f]{4})-([0-9a-f]{3})\b", re.IGNORECASE)


def checkpoint(chapter: str) -> str:
    """The code of a chapter such as "02", from your newest run of its stage, whatever it trained and where.

    An `InvalidValue` is raised if there is none.
    """
    if chapter not in STAGES:
        raise one_of(chapter, [*STAGES], "chapter with a code")
    for run in RunStore().history():
        if run.stage == STAGES[chapter] and run.status in ("ok", "not_applicable"):
            return of_run(chapter, run)
    what = f"no run of chapter {chapter} is stored"
    raise InvalidValue(what, "Press Run in its panel, then call this again")


def of_run(chapter: str, run: Run) -> str:
    """The code of a run. `sim` marks a predicted ratio, `na` a stage that cannot act on the machine."""
    gain = run.speedup("previous") or run.speedup("baseline")
    ratio = f"{gain.ratio:.2f}" if gain else "done"
    if run.status != "ok":
        ratio = "na"
    elif gain and run.simulated:
        ratio = f"sim{ratio}"
    body = f"{chapter}-{ratio}-{_digest(run.id)[:4]}"
    return f"{body}-{_digest(body)[:3]}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Entry(NamedTuple):
    """A line of a teacher's list."""

    name: str
    chapter: str = ""
    ratio: str = ""
    fault: str = ""  # why the code does not count; empty if it does


def verify(lines: Iterable[str]) -> Iterator[Entry]:
    """The entries of a list with lines such as `Ada 02-1.42-3f9a-b01`; skips empty lines and `#` comments."""
    owners = dict[str, str]()
    for number, line in enumerate(map(str.strip, lines), 1):
        if not line or line.startswith("#"):
            continue
        found = _CODE.search(line)
        if found is None:
            yield Entry(line[:40], fault=f"line {number} has no code")
            continue
        chapter, ratio, tag, check = found[0].lower().split("-")
        name = line.replace(found[0], "").strip(" \t:,;") or f"line {number}"
        owner = owners.setdefault(f"{chapter}-{tag}", name)
        fault = ""
        if check != _digest(f"{chapter}-{ratio}-{tag}")[:3]:
            fault = "mistyped: a letter or digit is wrong"
        elif owner != name:
            fault = f"the same run as {owner}'s"
        yield Entry(name, chapter, ratio, fault)
