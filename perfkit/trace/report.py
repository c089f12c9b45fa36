"""A trace's analysis as sections: what stands out, the pictures, steps, work, waiting, ranks."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perfkit.show import units
from perfkit.show.document import Cell, Col, Content, Section, Table, tabulate
from perfkit.trace import figures
from perfkit.trace.figures import reason, us
from perfkit.trace.model import Analysis, Bottleneck, Health, Idle, Kernel, Operator, Sync, Transfer
from perfkit.trace.timeline import Lanes

ROWS = 12
"""Most rows of a long table; the JSON has them all."""
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
_FORMATS = {
    "calls": "{:,}".format,
    "bytes": units.size,
    "occupancy": units.percent,
    "share_of_step": units.percent,
    "gain_at_most": units.times,
    "ms_per_step": lambda ms: us(1e3 * ms),
}
"""How a field is written that is no text, no time in µs and no plain number."""
_USE = ("gpu_utilization_with_copies", "gpu_utilization", "est_sm_efficiency", "est_achieved_occupancy")


def sections(analysis: Analysis, window: Lanes | None = None) -> list[Content]:
    """Everything that an analysis reports, with the timeline."""
    names, talk = ", ".join(Path(name).name for name in analysis.files), analysis.communication or {}
    exposed, total = (us(talk.get(f"{part}_us_per_step")) for part in ("exposed", "total"))
    ranks = f"Collectives take {total} of a step, of which {exposed} do not overlap with computation."
    health = _listed("Health of the trace", Health, analysis.health, "sound")
    diagnosis = _listed("Diagnosis", Bottleneck, analysis.diagnosis, "nothing stands out")
    device, on_gpu = analysis.device, analysis.has_accelerator
    work, waits = [_listed("Operators", Operator, analysis.operators, "no operators were recorded")], []
    if on_gpu:
        work.append(_listed("Kernels", Kernel, analysis.kernels, reason(analysis)))
        note = "An operator's row includes its runtime call: do not add them."
        waits = [
            _listed("Copies", Transfer, analysis.transfers, "no copies were recorded"),
            _listed("Synchronising calls", Sync, analysis.syncs, "no call made the host wait", note),
        ]
    return [
        f"{names} · {device['name'] or device['kind']}",
        Section("What stands out", [health, diagnosis]),
        Section("Figure", [figures.breakdown(analysis)]),
        Section("Timeline", [figures.interactive(window)] if window else []),
        Section("Where a step goes", [_mean_step(analysis)]),
        Section("How well the device is used", _use(analysis) if on_gpu else []),
        Section("Work", work),
        Section("Copies and waits", waits),
        Section("Ranks", [ranks] if talk else []),
    ]


def _listed(title: str, kind: type, rows: Sequence[Any], none: str, note: str = "") -> Table:
    """A table of rows of one kind; columns that are unknown in all of them are left out."""
    columns = [
        Col(_head(field), functools.partial(_cell, field))
        for field in _COLUMNS[kind].split()
        if any(getattr(row, field) is not None for row in rows)
    ]
    return tabulate(columns, rows, title, note, none, ROWS)


def _head(field: str) -> str:
    return _HEADS.get(field, field.removesuffix("_us").replace("_", " "))


def _cell(field: str, row: Any) -> Cell | str:
    value = getattr(row, field)
    if isinstance(value, list):
        return ", ".join(value) or "—"
    if isinstance(value, str):
        return units.clean(value, 0 if field == "message" else 60)
    return Cell(value, us if "us" in field.split("_") else _FORMATS.get(field, units.number))


def _mean_step(analysis: Analysis) -> Table:
    step, hidden = analysis.mean_step_us, analysis.exposed_and_hidden_us
    rows: list[list[Cell | str]] = [
        [
            part,
            Cell(time, us),
            Cell(time / step if step else None, units.percent),
            Cell(hidden.get(part, time), us),
        ]
        for part, time in analysis.mean_us.items()
        if time is not None
    ]
    note = f"Other parts are {reason(analysis, 'mean_us')}" if None in analysis.mean_us.values() else ""
    return Table(["part", "exposed", "of the step", "exposed + hidden"], rows, "Mean step", note)


def _use(analysis: Analysis) -> list[Content]:
    """The share of the step in which the device works, by ever stricter definitions; why it does not."""
    shares = [(_head(field), field, getattr(analysis, field)) for field in _USE]
    shares += [(f"Tensor Cores: {name}", "", share) for name, share in (analysis.tensor_core or {}).items()]
    rows: list[list[Cell | str]] = [
        [head, Cell(share, units.percent, reason(analysis, field))] for head, field, share in shares
    ]
    note = "Of the step; Tensor Cores, estimated by name, of the kernels' time."
    idle = reason(analysis, "idle") if analysis.gpu_utilization is None else "the device is never idle"
    return [
        Table(["figure", "share"], rows, "Utilisation", note),
        _listed("Idle time by cause", Idle, analysis.idle, idle),
    ]
