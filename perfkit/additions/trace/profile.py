"""What a trace says, as sections; and one recipe under the profiler, in a fresh process."""

import functools
import secrets
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from perfkit import machine
from perfkit.additions import trace as traces
from perfkit.additions.looking import prepared
from perfkit.additions.trace.model import Analysis
from perfkit.additions.trace.table import Trace
from perfkit.additions.trace.timeline import LOOKS, OTHER, interactive
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.show import units
from perfkit.show.document import Cell, Col, Content, Section, Table, tabulate
from perfkit.show.style import Figure, Row
from perfkit.studies.sources import Progress

_ROWS, _STEPS = 12, 12
"""Most rows of a long table, and most steps in the picture; the JSON has them all."""
_TABLES = {
    "health": ("Health of the trace", "severity message spoils", "sound"),
    "diagnosis": ("Diagnosis", "bottleneck message exposed_us try_next gain_at_most", "nothing stands out"),
    "operators": (
        "Operators",
        "name calls device_self_us device_total_us host_self_us host_total_us input_shapes",
        "no operators were recorded",
    ),
    "kernels": (
        "Kernels",
        "name calls total_us mean_us occupancy blocks_per_sm tensor_core operator frame",
        "no kernels were recorded",
    ),
    "transfers": (
        "Copies",
        "direction us_per_step gb_per_s operator frame host_memory calls_per_step bytes",
        "no copies were recorded",
    ),
    "syncs": (
        "Synchronising calls (an operator's row includes its runtime call)",
        "call kind calls_per_step ms_per_step operator frame",
        "no call made the host wait",
    ),
    "idle": ("Idle time by cause", "cause us_per_step share_of_step", "the device is never idle"),
}
"""A field of an analysis → the title of its table, the fields of a row that it shows, why it has no rows."""
_HEADS = {"us_per_step": "time/step", "ms_per_step": "time/step", "gb_per_s": "GB/s", "spoils": "affects"}
"""Of a column, where the name of the field without its unit is not enough."""
_USE = ("gpu_utilization_with_copies", "gpu_utilization", "est_sm_efficiency", "est_achieved_occupancy")


def us(value: float | None) -> str:
    """A time in µs, in words."""
    return units.duration(None if value is None else value / 1e6)


_FORMATS = {
    "calls": "{:,}".format,
    "bytes": units.size,
    "occupancy": units.percent,
    "share_of_step": units.percent,
    "gain_at_most": units.times,
    "ms_per_step": lambda ms: us(1e3 * ms),
}
"""How a field is written that is no text, no time in µs and no plain number."""


@dataclass(frozen=True)
class Profile:
    """A trace, and what it says."""

    trace: Trace
    path: Path | None = None
    """The trace; chrome://tracing and ui.perfetto.dev open it."""

    @cached_property
    def analysis(self) -> Analysis:
        """What the trace says."""
        analysis: Analysis = traces.analyse(self.trace)
        return analysis

    def sections(self) -> list[Content]:
        """What stands out, the pictures, steps, work, waiting, ranks."""
        analysis, ranks = self.analysis, list[Content]()
        use, work, waits = list[Content](), [self._table("operators")], list[Content]()
        if analysis.has_accelerator:
            use = [self._use(), self._table("idle")]
            work.append(self._table("kernels"))
            waits = [self._table("transfers"), self._table("syncs")]
        if talk := analysis.communication:
            total, exposed = us(talk["total_us_per_step"]), us(talk["exposed_us_per_step"])
            ranks = [f"Collectives take {total} of a step; {exposed} do not overlap with computation."]
        return [
            f"{self.trace.file.path.name} · {analysis.device['name'] or analysis.device['kind']}",
            Section("What stands out", [self._table("health"), self._table("diagnosis")]),
            Section("Figure", [self._breakdown()]),
            Section("Timeline", [interactive(traces.lanes(self.trace))] if analysis.steps else []),
            Section("Where a step goes", [self._mean_step()]),
            Section("How well the device is used", use),
            Section("Work", work),
            Section("Copies and waits", waits),
            Section("Ranks", ranks),
        ]

    def _spoiled(self, figure: str) -> str:
        """Why a figure cannot be trusted; empty where it can."""
        problems = (problem.message for problem in self.analysis.health if figure in problem.spoils)
        return next((f"{units.NOT_AVAILABLE}: {problem}" for problem in problems), "")

    def _table(self, name: str) -> Table:
        """A table of the analysis; columns that are unknown in all of its rows are left out."""
        (title, fields, none), rows = _TABLES[name], getattr(self.analysis, name)
        columns = [
            Col(_head(field), functools.partial(_cell, field))
            for field in fields.split()
            if any(getattr(row, field) is not None for row in rows)
        ]
        note = f"The first {_ROWS} of {len(rows)}." if len(rows) > _ROWS else ""
        return tabulate(columns, rows[:_ROWS], title, note, self._spoiled(name) or none)

    def _breakdown(self) -> Figure:
        """A stacked bar for each step, and for the mean."""
        title, mean = "Where the steps' time goes", self.analysis.mean_us
        if self.analysis.device["simulated"]:
            title = f"Simulated: {title}"
        steps = [(step.name, step.duration_us, step.breakdown_us) for step in self.analysis.steps[:_STEPS]]
        rows = list[Row]()
        for name, length, each in [*steps, ("mean", self.analysis.mean_step_us, mean)]:
            pieces = [((time or 0.0) / 1e3, LOOKS.get(part, OTHER)) for part, time in each.items()]
            rows.append(Row(name.replace("ProfilerStep#", "step "), pieces, us(length)))
        return Figure("breakdown", title, rows, "ms", self._spoiled("mean_us") or "nothing was recorded")

    def _mean_step(self) -> Table:
        mean, step = self.analysis.mean_us, self.analysis.mean_step_us or 1.0
        both = self.analysis.exposed_and_hidden_us
        columns = [
            Col("part", lambda row: row[0]),
            Col("exposed", lambda row: row[1], us),
            Col("of the step", lambda row: row[1] / step, units.percent),
            Col("exposed + hidden", lambda row: both.get(*row), us),
        ]
        known = [(part, time) for part, time in mean.items() if time is not None]
        note = "" if self.analysis.has_accelerator else f"Other parts: {self.analysis.device['reason']}"
        return tabulate(columns, known, "Mean step", note, self._spoiled("mean_us"))

    def _use(self) -> Table:
        """The share of the step in which the device works, by ever stricter definitions."""
        shares = [(_head(field), getattr(self.analysis, field)) for field in _USE]
        cores = self.analysis.tensor_core or {}
        shares += [(f"Tensor Cores: {name}", share) for name, share in cores.items()]
        absent = self._spoiled("gpu_utilization") or f"{units.NOT_AVAILABLE}: the trace does not record it"
        rows = [(head, Cell(share, units.percent, absent)) for head, share in shares]
        note = "Of the step; Tensor Cores, estimated by name, of the kernels' time."
        return Table(["figure", "share"], rows, "Utilisation", note)


def _head(field: str) -> str:
    return _HEADS.get(field, field.removesuffix("_us").replace("_", " "))


def _cell(field: str, row: Any) -> Cell | str:
    value = getattr(row, field)
    if isinstance(value, list):
        return ", ".join(value) or "—"
    if isinstance(value, str):
        return units.clean(value, 0 if field == "message" else 60)
    return Cell(value, us if "us" in field.split("_") else _FORMATS.get(field, units.number))


def new_file() -> Path:
    """The file of a further trace, among the runs."""
    folder = machine.data_folder() / "runs" / "profiles"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}.pt.trace.json.gz"


def profile(
    workload: str | None = None,
    recipe: Recipe | str | None = None,
    steps: int = 3,
    stacks: bool = False,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **where: Any,
) -> Profile:
    """Profiles some steps of a recipe, or of a stage of the ladder.

    Args:
        workload: a built-in one, or `package.module:name`.
        recipe: the switches, or the name of a stage, on top of the default ladder below it; the plain loop
            if None.
        steps: how many to record, after five that are skipped or discarded.
        stacks: whether with Python frames.
        out: the trace file; a new one among the runs if None.
        progress: follows and stops it.
        where: preset, settings, device, options, seed, host, as for `perfkit.plan`.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    path = Path(out).absolute() if out else new_file()
    if not path.name.endswith((".json", ".json.gz")):
        raise InvalidValue(f"cannot write a trace to {path}", "Give a name that ends in .json or .json.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    with prepared(workload, recipe, where, progress) as (source, used):
        how: dict[str, Any] = {"wait": 1, "warmup": 4, "active": steps, "stacks": stacks}
        source.look(used, "profile", path=str(path), **how)
    return Profile(Trace(path), path)
