"""A trace's analysis as sections: what stands out, the picture, steps, work, waiting, ranks."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from perfkit.show import units
from perfkit.show.document import Cell, Col, Content, Section, Table, tabulate
from perfkit.show.units import clean
from perfkit.trace import figures
from perfkit.trace.figures import reason, us
from perfkit.trace.model import Analysis, Bottleneck
from perfkit.trace.timeline import Lanes

_Rows = list[list[Cell | str]]
ROWS = 12
"""Most rows of a long table; the JSON has them all."""


def _text(value: str | None) -> str:
    return clean(value or "not recorded", 60)


def _place(row: Any) -> str:
    return _text(" · ".join(filter(None, (row.operator, row.frame))))


_HEALTH = (
    Col("severity", "severity"),
    Col("what", "message"),
    Col("affects", lambda problem: ", ".join(problem.spoils) or "nothing"),
)
_DIAGNOSIS = (
    Col("bottleneck", "bottleneck"),
    Col("what", "message"),
    Col("exposed", "exposed_us", us),
    Col("try next", lambda finding: ", ".join(finding.try_next) or "—"),
    Col("gain at most", lambda finding: Cell(finding.gain_at_most, units.times, "no bound")),
)
_OPERATORS = (
    Col("operator", lambda row: _text(row.name)),
    Col("calls", "calls", "{:,}".format),
    Col("host self", "host_self_us", us),
    Col("host total", "host_total_us", us),
    Col("shapes", lambda row: clean(row.input_shapes or "not recorded", 44)),
)
_ON_DEVICE = (Col("device self", "device_self_us", us), Col("device total", "device_total_us", us))
_KERNELS = (
    Col("kernel", lambda row: _text(row.name)),
    Col("calls", "calls", "{:,}".format),
    Col("total", "total_us", us),
    Col("mean", "mean_us", us),
    Col("occupancy", "occupancy", units.percent),
    Col("blocks/SM", "blocks_per_sm", units.number),
    Col("Tensor Cores", "tensor_core"),
    Col("launched by", _place),
)
_COPIES = (
    Col("copy", "direction"),
    Col("time/step", "us_per_step", us),
    Col("GB/s", "gb_per_s", units.number),
    Col("from", _place),
    Col("host memory", lambda row: _text(row.host_memory)),
    Col("calls/step", "calls_per_step", units.number),
    Col("total bytes", "bytes", units.size),
)
_SYNCS = (
    Col("call", lambda row: _text(row.call)),
    Col("kind", "kind"),
    Col("calls/step", "calls_per_step", units.number),
    Col("time/step", lambda row: 1e3 * row.ms_per_step, us),
    Col("from", _place),
)
_IDLE = (
    Col("the device is idle for", lambda row: row.cause.replace("_", " ")),
    Col("time/step", "us_per_step", us),
    Col("of the step", "share_of_step", units.percent),
)


def sections(analysis: Analysis, window: Lanes | None = None) -> list[Content]:
    """Everything that an analysis reports.

    Args:
        analysis: of a trace.
        window: the timeline.
    """
    names, talk = ", ".join(Path(name).name for name in analysis.files), analysis.communication or {}
    device, on_gpu = analysis.device, analysis.has_accelerator
    exposed, total = (us(talk.get(f"{part}_us_per_step")) for part in ("exposed", "total"))
    ranks = f"Collectives take {total} of a step, of which {exposed} do not overlap with computation."
    health = tabulate(_HEALTH, analysis.health, "Health of the trace", none="sound")
    columns = [*_OPERATORS[:3], *(_ON_DEVICE if on_gpu else ()), *_OPERATORS[3:]]
    work = [tabulate(columns, analysis.operators, "Operators", none="no operators were recorded", most=ROWS)]
    if on_gpu:
        work.append(tabulate(_KERNELS, analysis.kernels, "Kernels", none=reason(analysis), most=ROWS))
    return [
        f"{names} · {device['name'] or device['kind']}",
        Section("What stands out", [health, diagnosis(analysis.diagnosis)]),
        Section("Figure", [figures.breakdown(analysis)]),
        Section("Timeline", [figures.interactive(window)] if window else []),
        Section("Where a step goes", [_mean_step(analysis)]),
        Section("How well the device is used", _use(analysis) if on_gpu else []),
        Section("Work", work),
        Section("Copies and waits", _waits(analysis) if on_gpu else []),
        Section("Ranks", [ranks] if talk else []),
    ]


def diagnosis(findings: Iterable[Bottleneck]) -> Table:
    """What stands out, the switches to try and the bound of the gain."""
    return tabulate(_DIAGNOSIS, list(findings), "Diagnosis", none="nothing stands out")


def _mean_step(analysis: Analysis) -> Table:
    step = analysis.mean_step_us
    rows: _Rows = [
        [
            part,
            Cell(time, us),
            Cell(time / step if step else None, units.percent),
            Cell(analysis.exposed_and_hidden_us.get(part, time), us),
        ]
        for part, time in analysis.mean_us.items()
        if time is not None
    ]
    note = f"Other parts are {reason(analysis, 'mean_us')}" if None in analysis.mean_us.values() else ""
    return Table(["part", "exposed", "of the step", "exposed + hidden"], rows, "Mean step", note)


def _use(analysis: Analysis) -> list[Content]:
    """The share of the step in which the device works, by ever stricter definitions; why it does not."""
    cores = analysis.tensor_core
    shares = (
        ("a kernel or a copy runs", "gpu_utilization", analysis.gpu_utilization_with_copies),
        ("a kernel runs", "gpu_utilization", analysis.gpu_utilization),
        ("SM efficiency, estimated", "est_sm_efficiency", analysis.est_sm_efficiency),
        ("achieved occupancy, estimated", "est_achieved_occupancy", analysis.est_achieved_occupancy),
        ("kernel time on Tensor Cores, estimated", "tensor_core", cores and cores["yes"]),
    )
    rows: _Rows = [
        [name, Cell(share, units.percent, reason(analysis, figure))] for name, figure, share in shares
    ]
    note = f"Tensor Cores, by kernel name: {units.percent(cores['unknown'])} unknown." if cores else ""
    idle = reason(analysis, "idle") if analysis.gpu_utilization is None else "the device is never idle"
    return [
        Table(["of the step, or as named", "share"], rows, "Utilisation", note),
        tabulate(_IDLE, analysis.idle, "Idle time by cause", none=idle),
    ]


def _waits(analysis: Analysis) -> list[Content]:
    note = "An operator's row includes its runtime call: do not add them."
    none = "no call made the host wait"
    return [
        tabulate(_COPIES, analysis.transfers, "Copies", none="no copies were recorded", most=ROWS),
        tabulate(_SYNCS, analysis.syncs, "Synchronising calls", note, none, ROWS),
    ]
