"""Shows an analysed trace as sections; profiles a recipe in a new process."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from perfkit.additions.shared.looking import Chosen, new_trace, prepared, profiled
from perfkit.additions.trace import data
from perfkit.additions.trace.analysis import analyse
from perfkit.additions.trace.data import us
from perfkit.additions.trace.model import Analysis
from perfkit.errors import InvalidValue
from perfkit.recipe import switches
from perfkit.show import style, units
from perfkit.show.document import Cell, Col, Content, Section, Table, tabulate
from perfkit.show.style import Figure, Look, Row
from perfkit.studies.planning import Where
from perfkit.studies.sources import Progress

_ROWS, _STEPS = 12, 12  # the most rows of a table and steps of a picture; the JSON has them all

_FORMATS = {
    **dict.fromkeys(("share_of_step", "gpu_utilization"), units.percent),
    **dict.fromkeys(("calls", "rank"), "{:,}".format),
    "bytes": units.size,
    "gain_at_most": units.times,
}
"""Formats of fields that are not texts, times in µs or plain numbers."""

_WORDS = data.table("words")["part"]
_LOOKS = {
    "kernel": style.COMPUTES, "memcpy": style.COPIES, "memset": Look("", style.GREY, "++"),
    "communication": Look("", style.VERMILLION, "xx"), "runtime": style.LAUNCHES._replace(hatch="--"),
    "dataloader": style.WAITS, "cpu_op": Look("", style.YELLOW, ".."), "other": Look("", "#bbbbbb"),
}  # fmt: skip
LOOKS = {part: look._replace(label=_WORDS[part]) for part, look in _LOOKS.items()}
"""The labels, colours and hatches of the parts of a step."""


@dataclass(frozen=True)
class Profile:
    """An analysed trace, and how it is shown."""

    analysis: Analysis

    def sections(self) -> list[Content]:
        """A summary, what stands out, the ranks, a picture, steps, work, and waiting."""
        analysis = self.analysis
        whole = analysis.is_whole
        use = list[Content]()
        work = [self._table("operators")]
        waits = list[Content]()
        if analysis.has_accelerator:
            how = self._spoiled("gpu_utilization") or data.filled("use.jinja", a=analysis)
            use = [how, self._table("idle")]
            work.append(self._table("kernels"))
            waits = [self._table("transfers"), self._table("syncs")]
        talk: list[Content] = [text] if (text := lateness(analysis)) else []
        if analysis.ranks:
            talk.append(self._table("ranks"))
        return [
            summary(analysis),
            Section("What stands out", [self._table("diagnosis"), self._table("health")]),
            Section("Ranks", talk),
            Section("The recording in a picture" if whole else "The steps in a picture", [self._breakdown()]),
            Section("Where the time goes" if whole else "Where a step goes", [self._mean_step()]),
            Section("How well the device is used", use),
            Section("Work", work),
            Section("Copies and waits", waits),
            f"{analysis.files[0]}: open it in https://ui.perfetto.dev to see it on a timeline",
        ]

    def _spoiled(self, figure: str) -> str:
        """Why a figure cannot be trusted; empty if it can."""
        problems = (problem.message for problem in self.analysis.health if figure in problem.spoils)
        return next((f"{units.NOT_AVAILABLE}: {problem}" for problem in problems), "")

    def _table(self, name: str) -> Table:
        """A table of the analysis, without the columns that are unknown in all of its rows."""
        words, rows = data.table("words")["table"][name], getattr(self.analysis, name)
        none = words["none"]
        columns = [
            Col(_head(field, self.analysis.is_whole), functools.partial(_cell, field))
            for field in words["fields"].split()
            if any(getattr(row, field) is not None for row in rows)
        ]
        if name == "diagnosis" and self.analysis.device["kind"] == "unknown":
            none = "none, as not enough was recorded"
        note = f"The first {_ROWS} of {len(rows)}." if len(rows) > _ROWS else ""
        return tabulate(columns, rows[:_ROWS], words["title"], note, self._spoiled(name) or none)

    def _breakdown(self) -> Figure:
        """A stacked bar for each step, and one for the mean."""
        title = "Where the time goes"
        if self.analysis.device["simulated"]:
            title = f"Simulated: {title}"
        steps = [(step.name, step.duration_us, step.breakdown_us) for step in self.analysis.steps[:_STEPS]]
        rows = list[Row]()
        if len(steps) > 1:
            steps.append(("mean", self.analysis.mean_step_us or 0.0, self.analysis.mean_us))
        for name, length, each in steps:
            pieces = [((time or 0.0) / 1e3, LOOKS[part]) for part, time in each.items()]
            rows.append(Row(name.replace("ProfilerStep#", "step "), pieces, us(length)))
        return Figure("breakdown", title, rows, "ms", self._spoiled("mean_us") or "nothing was recorded")

    def _mean_step(self) -> Table:
        mean = self.analysis.mean_us
        step = self.analysis.mean_step_us or 1.0
        columns = [
            Col("part", lambda row: _WORDS[row[0]]),
            Col("exposed", lambda row: row[1], us),
            Col("share", lambda row: row[1] / step, units.percent),
        ]
        known = [(part, time) for part, time in mean.items() if time is not None]
        note = data.table("words")["note"]["exposed"]
        if not self.analysis.has_accelerator:
            note += f" Other parts are {units.NOT_AVAILABLE}: {self.analysis.device['reason']}."
        elif mean["cpu_op"] is None:
            note += " The operators' time on the host was not recorded."
        title = "The recording" if self.analysis.is_whole else "Mean step"
        return tabulate(columns, known, title, note, self._spoiled("mean_us"))


def summary(analysis: Analysis) -> str:
    """What ran, where, and for how long; how busy the device was; the largest bottleneck."""
    device = data.table("words")["device"].get(analysis.device["kind"], "an unnamed accelerator")
    return data.filled("summary.jinja", a=analysis, device=device)


def lateness(analysis: Analysis) -> str:
    """Which rank is late, how long the others wait, how long collectives take; empty without collectives."""
    waits = {row.rank: row.waiting_us for row in analysis.ranks if row.waiting_us is not None}
    own = None if analysis.late_rank is None else waits.pop(analysis.late_rank)
    return data.filled("ranks.jinja", a=analysis, waits=[*waits.values()], own=own)


def _head(field: str, whole: bool = False) -> str:
    head = data.table("words")["head"].get(field, field.removesuffix("_us").replace("_", " "))
    if whole:
        head = head.replace("/step", "").replace("per step", "in all").replace("of step", "of the recording")
    return str(head)


def _cell(field: str, row: object) -> Cell | str:
    value = getattr(row, field)
    if field == "try_next":
        value = [switches()[name].label for name in value]
    if field == "cause":
        return str(data.table("words")["cause"][value])
    if isinstance(value, list):
        return ", ".join(map(_head, value)) or "—"
    if isinstance(value, str):
        return units.clean(value, 0 if field == "message" else 60)
    return Cell(value, us if "us" in field.split("_") else _FORMATS.get(field, units.number))


def profile(
    workload: str | None = None,
    recipe: Chosen = None,
    steps: int = 3,
    stacks: bool = False,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **where: Unpack[Where],
) -> Profile:
    """Profiles some steps of a recipe, or of a stage of the ladder; a `PerfkitError` if that fails.

    Args:
        recipe: the switches, or the name of a stage, on top of the default ladder below it; the plain loop
            if None.
        steps: the number of steps to record, after five that are skipped or discarded.
        stacks: whether to record Python frames.
        out: the trace file; None: a new file in the folder of the runs.
        progress: reports progress, and can stop the profiling.
        workload: like preset, settings, device, options, seed and host, as for `perfkit.plan`.
    """
    path = Path(out).absolute() if out else new_trace()
    if not path.name.endswith((".json", ".json.gz")):
        raise InvalidValue(f"cannot write a trace to {path}", "Give a name that ends in .json or .json.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    with prepared(workload, recipe, where, progress) as (session, used):
        return Profile(analyse(profiled(session, used, steps, path, stacks)))
