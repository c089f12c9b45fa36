"""Findings: avoidable costs, whose texts are in the tables of `Causes`, and how they are shown."""

import re
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import jinja2
import msgspec

from perfkit import lookup
from perfkit.process.failures import PACKAGE
from perfkit.results.stats import Ratio
from perfkit.show import sentences, units
from perfkit.show.document import Table
from perfkit.show.units import clean

WORTH_A_SENTENCE = 0.1  # findings of at least this weight are named first
_HELPS = 1.05  # the least measured gain of a switch that is still suggested
_MOST_WARNINGS = 12


class Finding(msgspec.Struct, frozen=True):
    """An avoidable cost, or a switch to try: `findings` and `suggestions` of `watch` in docs/json.md."""

    cause: str
    evidence: str
    change: str
    where: str = ""
    share: float | None = None
    around: str = ""  # the function or loop that may go with the line
    around_share: float | None = None
    urgency: float = 0.0
    kind: str = "time"
    limit: str = "up to"
    settings: dict[str, bool | int | str] = {}
    measured: Ratio | None = None

    @property
    def gain(self) -> float | None:
        """How many times as fast the run can become."""
        share = self.around_share or self.share or 0.0
        return 1 / max(1 - share, 0.01) if share and self.limit else None

    @property
    def weight(self) -> float:
        return max(self.share or 0.0, self.urgency)

    @property
    def may_help(self) -> bool:
        """Whether the change was not tried, or gained something."""
        tried = self.measured
        return tried is None or (tried.ratio >= _HELPS and tried.verdict != "no measurable difference")

    @property
    def is_worth_a_sentence(self) -> bool:
        """Whether it may be said first; a cause is seen in its line, what a switch gives is a bound."""
        is_cause = not self.settings and (self.share or 0.0) >= WORTH_A_SENTENCE / 2
        return self.measured is not None or is_cause or self.weight >= WORTH_A_SENTENCE

    def expected(self, bound: str = "up to about") -> str:
        """The expected gain in words. `bound` comes before a gain that only the share limits."""
        if self.measured:
            return f"{sentences.result(self.measured)}, measured"
        if self.gain:
            return f"{bound if self.limit == 'up to' else self.limit} {self.gain:.3g}×"
        return {"memory": "less memory", "data": "correct training"}.get(self.kind, "measure to find out")


Found = Iterator[Finding]
UNITS = {name: getattr(units, name) for name in ("percent", "number", "size", "times", "plural", "duration")}
_SENTENCES = jinja2.Environment(undefined=jinja2.StrictUndefined)
_SENTENCES.filters |= UNITS


class Causes:
    """The table of the causes that a module recognises, `NAME.toml` next to it: their texts, and limits."""

    def __init__(self, module: str) -> None:
        package, _, name = module.rpartition(".")
        self._rows = lookup.toml(package, name)
        self.limits = SimpleNamespace(**self._rows.pop("limits", {}))

    def found(self, cause: str, where: str = "", share: float | None = None, **facts: Any) -> Finding:
        """A finding; its sentences are filled in with `facts`."""
        row = dict(self._rows[cause])  # its sentences; all else in it are fields of a `Finding`
        seen, change = (_SENTENCES.from_string(row.pop(text)) for text in ("seen", "change"))
        texts = seen.render(facts, share=share), change.render(facts, share=share)
        return Finding(cause, *texts, where, share or None, **row)


def advice_table(findings: Sequence[Finding], bound: str = "up to about") -> Table:
    """A table of possible changes and their expected gains; `bound` is as for `expected`."""
    rows = []
    for finding in findings:
        without = f", without {finding.around}" if finding.around and finding.gain else ""
        expected = clean(f"{finding.expected(bound)}{without}")
        rows.append([clean(finding.evidence), clean(finding.change), expected, finding.where])
    note = "" if rows else "Nothing observed suggests a change."
    return Table(("evidence", "change", "expected", "where"), rows, note=note)


def warnings_of(lines: Iterable[str]) -> list[str]:
    """The warnings in a script's output, each once, with their place, whatever numbers are in their texts."""
    found = dict[str, str]()
    for line in lines:
        if "Traceback of forward call" in line:  # of an error that the script handled, noted by a look
            continue
        if re.match(r".+?:\d+: \w*Warning: ", line) or "torch._dynamo hit config" in line:
            said = line.strip()
            if said.startswith(str(PACKAGE)):  # a wrapper's line, in place of the script's
                _, said = said.split(": ", 1)
            found.setdefault(re.sub(r"(?<![:\d])\d+", "", said), said)
    return list(found.values())[:_MOST_WARNINGS]
