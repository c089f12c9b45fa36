"""Findings: avoidable costs, with texts from the table `causes.toml`, and how they are shown."""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from perfkit import registry
from perfkit.results.stats import Ratio
from perfkit.show import sentences, units
from perfkit.show.document import Bullets, Content, Section, Table
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
    urgency: float = 0.0
    kind: str = "time"
    limit: str = "up to"
    settings: dict[str, bool | int | str] = {}
    measured: Ratio | None = None

    @property
    def gain(self) -> float | None:
        """How many times as fast the run can become."""
        return 1 / max(1 - self.share, 0.01) if self.share and self.limit else None

    @property
    def weight(self) -> float:
        return max(self.share or 0.0, self.urgency)

    @property
    def may_help(self) -> bool:
        """Whether the change was not tried, or gained something."""
        if self.measured is None:
            return True
        return self.measured.ratio >= _HELPS and self.measured.verdict != "no measurable difference"

    @property
    def is_worth_a_sentence(self) -> bool:
        """Whether it may be said first; a cause is seen in its line, what a switch gives is a bound."""
        is_cause = not self.settings and (self.share or 0.0) >= WORTH_A_SENTENCE / 2
        return self.measured is not None or is_cause or self.weight >= WORTH_A_SENTENCE

    def in_words(self, worth: str) -> str:
        """The finding and its remedy; `worth` says what that gains."""
        where = f"{self.where}: " if self.where else ""
        return f"{where}{self.evidence}. Remedy: {self.change}.{worth}"

    def expected(self, bound: str = "up to about") -> str:
        """The expected gain in words. `bound` comes before a gain that only the share limits."""
        if self.measured:
            return f"{sentences.result(self.measured)}, measured"
        if self.gain:
            return f"{bound if self.limit == 'up to' else self.limit} {self.gain:.3g}×"
        return {"memory": "less memory", "data": "correct training"}.get(self.kind, "measure to find out")


Found = Iterator[Finding]
_TEXTS: dict[str, dict[str, Any]] = registry.toml(__package__, "causes")


def of_table(cause: str, where: str = "", share: float | None = None, **facts: Any) -> Finding:
    """A finding with its texts from the table; `facts` are the numbers and names in its sentences."""
    text = _TEXTS[cause]
    evidence = text["seen"].format(share=units.percent(share or 0.0), **facts)
    change = text["change"].format(share=units.percent(share or 0.0), **facts)
    urgency, kind = text.get("urgency", 0.0), text.get("kind", "time")
    return Finding(cause, evidence, change, where, share or None, urgency, kind)


def advice_table(findings: Sequence[Finding], bound: str = "up to about") -> Table:
    """A table of possible changes and their expected gains; `bound` is as for `expected`."""
    rows = [[clean(each.evidence), clean(each.change), each.expected(bound), each.where] for each in findings]
    note = "" if rows else "Nothing observed suggests a change."
    return Table(("evidence", "change", "expected", "where"), rows, note=note)


def warnings_of(lines: Iterable[str]) -> list[str]:
    """The warnings in a script's output, each once, with their place."""
    found = dict[str, None]()
    for line in lines:
        if re.match(r".+?:\d+: \w*Warning: ", line) or "torch._dynamo hit config" in line:
            found.setdefault(line.strip())
    return list(found)[:_MOST_WARNINGS]


def warned(warnings: Sequence[str], printed: Sequence[str]) -> list[Content]:
    """The warnings of perfkit and of the script, in a section each if there are any."""
    parts = {"Take note": warnings, "What the script itself warned of": printed}
    return [Section(title, [Bullets(list(map(clean, texts)))]) for title, texts in parts.items() if texts]
