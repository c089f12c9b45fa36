"""What a trace says, as sections; and one recipe under the profiler, in a fresh process."""

import functools
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from perfkit import machine
from perfkit import trace as traces
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.show import units
from perfkit.show.document import Cell, Col, Content, Section, Table, tabulate
from perfkit.show.style import Figure, Row
from perfkit.studies.inspect import prepared
from perfkit.studies.sources import Progress
from perfkit.trace.model import Bottleneck, Health, Idle, Kernel, Operator, Sync, Transfer
from perfkit.trace.timeline import LOOKS, OTHER, interactive

_ROWS, _STEPS = 12, 12
"""Most rows of a long table, and most steps in the picture; the JSON has them all."""
_COLUMNS: dict[Any, str] = {
    Health: "severity message spoils",
    Bottleneck: "bottleneck message exposed_us try_next gain_at_most",
    Operator: "name calls device_self_us device_total_us host_self_us host_total_us input_shapes",
    Kernel: "name calls total_us mean_us occupancy blocks_per_sm tensor_core operator frame",
    Transfer: "direction us_per_step gb_per_s operator frame host_memory calls_per_step bytes",
    Sync: "call kind calls_per_step ms_per_step operator frame",
    Idle: "cause us_per_step share_of_step",
}
"""The fields of a row that a table shows."""
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

    trace: traces.Trace
    path: Path | None = None
    """The trace; chrome://tracing and ui.perfetto.dev open it."""

    @cached_property
    def analysis(self) -> traces.Analysis:
        """What the trace says."""
        return traces.analyse(self.trace)

    def sections(self) -> list[Content]:
        """What stands out, the pictures, steps, work, waiting, ranks."""
        analysis = self.analysis
        name, talk = self.trace.file.path.name, analysis.communication or {}
        exposed, total = (us(talk.get(f"{part}_us_per_step")) for part in ("exposed", "total"))
        ranks = f"Collectives take {total} of a step, of which {exposed} do not overlap with computation."
        health = _listed("Health of the trace", Health, analysis.health, "sound")
        diagnosis = _listed("Diagnosis", Bottleneck, analysis.diagnosis, "nothing stands out")
        work, waits = [_listed("Operators", Operator, analysis.operators, "no operators were recorded")], []
        if analysis.has_accelerator:
            work.append(_listed("Kernels", Kernel, analysis.kernels, self._reason()))
            note = "An operator's row includes its runtime call: do not add them."
            waits = [
                _listed("Copies", Transfer, analysis.transfers, "no copies were recorded"),
                _listed("Synchronising calls", Sync, analysis.syncs, "no call made the host wait", note),
            ]
        return [
            f"{name} · {analysis.device['name'] or analysis.device['kind']}",
            Section("What stands out", [health, diagnosis]),
            Section("Figure", [self._breakdown()]),
            Section("Timeline", [interactive(traces.lanes(self.trace))] if analysis.steps else []),
            Section("Where a step goes", [self._mean_step()]),
            Section("How well the device is used", self._use() if analysis.has_accelerator else []),
            Section("Work", work),
            Section("Copies and waits", waits),
            Section("Ranks", [ranks] if talk else []),
        ]

    def _reason(self, figure: str = "") -> str:
        """Why a figure is not known."""
        spoiled = (problem.message for problem in self.analysis.health if figure in problem.spoils)
        otherwise = self.analysis.device["reason"] or "the trace does not record it"
        return f"{units.NOT_AVAILABLE}: {next(spoiled, otherwise)}"

    def _breakdown(self) -> Figure:
        """A stacked bar for each step, and for the mean."""
        title, mean = "Where the steps' time goes", self.analysis.mean_us
        if self.analysis.device["simulated"]:
            title = f"Simulated: {title}"
        nothing = "" if any(mean.values()) else self._reason()
        steps = [(step.name, step.duration_us, step.breakdown_us) for step in self.analysis.steps[:_STEPS]]
        rows = list[Row]()
        for name, length, each in [*steps, ("mean", self.analysis.mean_step_us, mean)]:
            pieces = [((time or 0.0) / 1e3, LOOKS.get(part, OTHER)) for part, time in each.items()]
            rows.append(Row(name.replace("ProfilerStep#", "step "), pieces, us(length)))
        return Figure("breakdown", title, rows, "ms", nothing)

    def _mean_step(self) -> Table:
        mean, step, hidden = (
            self.analysis.mean_us, self.analysis.mean_step_us, self.analysis.exposed_and_hidden_us,
        )  # fmt: skip
        rows: list[list[Cell | str]] = [
            [
                part,
                Cell(time, us),
                Cell(time / step if step else None, units.percent),
                Cell(hidden.get(part, time), us),
            ]
            for part, time in mean.items()
            if time is not None
        ]
        note = f"Other parts are {self._reason('mean_us')}" if None in mean.values() else ""
        return Table(["part", "exposed", "of the step", "exposed + hidden"], rows, "Mean step", note)

    def _use(self) -> list[Content]:
        """The share of the step in which the device works, by ever stricter definitions; why it does not."""
        shares = [(_head(field), getattr(self.analysis, field), self._reason(field)) for field in _USE]
        cores = self.analysis.tensor_core or {}
        shares += [(f"Tensor Cores: {name}", share, "") for name, share in cores.items()]
        rows: list[list[Cell | str]] = [
            [head, Cell(share, units.percent, reason)] for head, share, reason in shares
        ]
        note = "Of the step; Tensor Cores, estimated by name, of the kernels' time."
        never = "the device is never idle"
        idle = self._reason("idle") if self.analysis.gpu_utilization is None else never
        return [
            Table(["figure", "share"], rows, "Utilisation", note),
            _listed("Idle time by cause", Idle, self.analysis.idle, idle),
        ]


def _listed(title: str, kind: type, rows: Sequence[Any], none: str, note: str = "") -> Table:
    """A table of rows of one kind; columns that are unknown in all of them are left out."""
    columns = [
        Col(_head(field), functools.partial(_cell, field))
        for field in _COLUMNS[kind].split()
        if any(getattr(row, field) is not None for row in rows)
    ]
    return tabulate(columns, rows, title, note, none, _ROWS)


def _head(field: str) -> str:
    return _HEADS.get(field, field.removesuffix("_us").replace("_", " "))


def _cell(field: str, row: Any) -> Cell | str:
    value = getattr(row, field)
    if isinstance(value, list):
        return ", ".join(value) or "—"
    if isinstance(value, str):
        return units.clean(value, 0 if field == "message" else 60)
    return Cell(value, us if "us" in field.split("_") else _FORMATS.get(field, units.number))


def profile(
    workload: str | None = None,
    recipe: Recipe | str | None = None,
    steps: int = 3,
    stacks: bool = False,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **where: Any,
) -> Profile:
    """Profiles some steps of a recipe, or of a rung of the ladder.

    Args:
        workload: a built-in one, or `package.module:name`.
        recipe: the switches, or the name of a rung, on top of the default ladder below it; the plain loop
            if None.
        steps: how many to record, after five that are skipped or discarded.
        stacks: whether with Python frames.
        out: the trace file; a new one among the runs if None.
        progress: follows and stops it.
        where: preset, settings, device, options, seed, host, as for `perfkit.plan`.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    name = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}.pt.trace.json.gz"
    path = Path(out) if out else machine.runs_folder() / "profiles" / name
    if not path.name.endswith((".json", ".json.gz")):
        raise InvalidValue(f"cannot write a trace to {path}", "Give a name that ends in .json or .json.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    with prepared(workload, recipe, where, progress) as (source, used):
        how = {"wait": 1, "warmup": 4, "active": steps, "stacks": stacks}
        source.look(used, "profile", str, path=str(path.absolute()), **how)
    return Profile(traces.Trace(path), path)
