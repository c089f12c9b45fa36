"""A trace's analysis as sections: what stands out, the pictures, steps, work, waiting, memory."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perfkit.show import units
from perfkit.show.document import Cell, Col, Content, Section, Table, tabulate
from perfkit.show.units import clean
from perfkit.trace import figures
from perfkit.trace.diagnosis import Bottleneck
from perfkit.trace.figures import reason
from perfkit.trace.loading import Loading
from perfkit.trace.model import Analysis, Lanes

ROWS = 12
"""Most rows of a long table; the JSON has them all."""
_SEVERITY = {"error": 0, "warning": 1, "info": 2}


def sections(
    analysis: Analysis,
    findings: Iterable[Bottleneck] = (),
    window: Lanes | None = None,
    loader: Loading | None = None,
) -> list[Content]:
    """Everything that an analysis reports.

    Args:
        analysis: of a trace.
        findings: what stands out.
        window: a step for the timeline.
        loader: the loader's work during a profile of our own.
    """
    names = ", ".join(name.replace("\\", "/").rpartition("/")[2] for name in analysis.files)
    loading = [loader_table(loader)] if loader else []
    return [
        f"{names} · {analysis.device['name'] or analysis.device['kind']}",
        Section("What stands out", [_health(analysis), diagnosis(findings)]),
        Section("Figures", figures.views(analysis, window)),
        Section("Timeline", [figures.interactive(window)] if window else []),
        Section("Where a step goes", [_steps(analysis), _mean_step(analysis), *loading]),
        Section("How well the device is used", [_utilization(analysis), _idle(analysis)]),
        Section("Work", [_operators(analysis), _kernels(analysis)]),
        Section("Copies and waits", [_transfers(analysis), _syncs(analysis)]),
        Section("Ranks and memory", [_communication(analysis), _memory(analysis)]),
    ]


def _us(value: float | None) -> str:
    return units.duration(None if value is None else value / 1e6)


def _rate(value: float | None) -> str:
    return "n/a" if value is None else f"{units.number(value)} GB/s"


def _text(limit: int) -> Callable[[Any], str]:
    return lambda value: clean(value or "not recorded", limit)


def _place(thing: Any) -> str:
    parts = " · ".join(filter(None, (thing.operator, thing.frame)))
    return clean(parts, 60) or "not recorded"


def _health(analysis: Analysis) -> Table:
    columns = [
        Col("severity", "severity"),
        Col("what", lambda banner: clean(banner.message)),
        Col("affects", lambda banner: ", ".join(banner.spoils) or "nothing"),
    ]
    banners = sorted(analysis.health, key=lambda banner: _SEVERITY.get(banner.severity, 0))
    return tabulate(columns, banners, "Health of the trace", none="sound")


def diagnosis(findings: Iterable[Bottleneck]) -> Table:
    """What stands out, with its evidence, the switch to try and the bound of its gain."""
    columns = [
        Col("bottleneck", "bottleneck"),
        Col("what", "message"),
        Col("evidence", _evidence, narrow=False),
        Col("try next", lambda finding: ", ".join(finding.try_next) or "—"),
        Col("gain at most", lambda finding: Cell(finding.gain_at_most, units.times, "no bound")),
    ]
    return tabulate(columns, list(findings), "Diagnosis", none="nothing stands out")


_SHARES = ("share", "shorter", "utilization", "efficiency", "tensor_core")


def _evidence(finding: Bottleneck) -> str:
    return ", ".join(_fact(key, value) for key, value in finding.evidence.items())


def _fact(key: str, value: object) -> str:  # noqa: PLR0911 - a case each
    """A number behind a diagnosis in words; its unit is in its name."""
    words = key.replace("_us", "").replace("_", " ")
    match value:
        case bool():
            return words if value else f"not {words}"
        case None:
            return f"{words} n/a"
        case float() if "_us" in key:
            return f"{words} {_us(value)}"
        case float() if any(share in key for share in _SHARES):
            return f"{words} {units.percent(value)}"
        case float() if "bytes" in key:
            return f"{units.size(value)} {words.removeprefix('bytes ')}"
        case float():
            return f"{words} {units.number(value)}"
        case dict():
            return f"{words} {'; '.join(f'{clean(name, 40)} {_us(time)}' for name, time in value.items())}"
        case list():
            return f"{words} {', '.join(clean(item, 40) for item in value)}"
    return f"{words} {clean(value, 100)}"


def _steps(analysis: Analysis) -> Table:
    parts = [part for part in analysis.mean_us if any(step.breakdown_us[part] for step in analysis.steps)]
    ranks = len({step.rank for step in analysis.steps})

    def name(step: Any) -> str:
        rank = f"rank {step.rank} " if ranks > 1 else ""
        return rank + clean(step.name, 40).removeprefix("ProfilerStep")

    columns = [Col("step", name), Col("duration", "duration_us", _us)]
    columns += [Col(part, _part(part), _us) for part in parts]
    note = "Parts that are missing here are 0 or n/a: see the mean step." if len(parts) < 8 else ""
    return tabulate(columns, analysis.steps, "Steps", note, reason(analysis), ROWS)


def _part(name: str) -> Callable[[Any], float | None]:
    return lambda step: step.breakdown_us[name]


def _mean_step(analysis: Analysis) -> Table:
    whole = analysis.mean_step_us

    def share(part: tuple[str, float | None]) -> float | None:
        return None if part[1] is None or not whole else part[1] / whole

    columns = [
        Col("part", lambda part: str(part[0])),
        Col("exposed", lambda part: part[1], _us),
        Col("of the step", share, units.percent),
        Col("exposed + hidden", lambda part: analysis.exposed_and_hidden_us.get(*part), _us),
    ]
    note = reason(analysis, "mean_us") if None in analysis.mean_us.values() else ""
    return tabulate(columns, list(analysis.mean_us.items()), "Mean step", note)


def _utilization(analysis: Analysis) -> Table:
    """The share of the step in which the device works, by ever stricter definitions."""
    cores = analysis.tensor_core
    with_copies = analysis.device["gpu_utilization_with_copies"]
    shares: list[tuple[str, str, str, float | None]] = [
        ("a kernel or a copy runs", "measured", "gpu_utilization", with_copies),
        ("a kernel runs", "measured", "gpu_utilization", analysis.gpu_utilization),
        ("SM efficiency", "estimated", "est_sm_efficiency", analysis.est_sm_efficiency),
        ("achieved occupancy", "estimated", "est_achieved_occupancy", analysis.est_achieved_occupancy),
        ("kernel time on Tensor Cores", "estimated", "tensor_core", cores["yes"] if cores else None),
    ]
    columns = [
        Col("of the step, or as named", lambda row: str(row[0])),
        Col("how it is known", lambda row: str(row[1])),
        Col("share", lambda row: Cell(row[3], units.percent, reason(analysis, row[2]))),
    ]
    note = f"Tensor Cores, by kernel name: {units.percent(cores['unknown'])} unknown." if cores else ""
    return tabulate(columns, shares, "Utilisation", note)


def _operators(analysis: Analysis) -> Table:
    columns = [
        Col("operator", "name", _text(60)),
        Col("shapes", "input_shapes", _text(44), narrow=False),
        Col("calls", "calls", "{:,}".format),
        Col("host self", "host_self_us", _us),
        Col("host total", "host_total_us", _us, narrow=False),
        Col("device self", "device_self_us", _us),
        Col("device total", "device_total_us", _us, narrow=False),
    ]
    return tabulate(columns, analysis.operators, "Operators", none="no operators were recorded", most=ROWS)


def _kernels(analysis: Analysis) -> Table:
    columns = [
        Col("kernel", "name", _text(60)),
        Col("calls", "calls", "{:,}".format),
        Col("total", "total_us", _us),
        Col("mean", "mean_us", _us),
        Col("blocks/SM", "blocks_per_sm", units.number, narrow=False),
        Col("occupancy", "occupancy", units.percent),
        Col("Tensor Cores", "tensor_core", narrow=False),
        Col("launched by", _place, narrow=False),
    ]
    return tabulate(columns, analysis.kernels, "Kernels", none=reason(analysis), most=ROWS)


def _transfers(analysis: Analysis) -> Table:
    columns = [
        Col("copy", "direction"),
        Col("host memory", lambda row: row.host_memory or "not recorded", narrow=False),
        Col("calls/step", "calls_per_step", units.number, narrow=False),
        Col("time/step", "us_per_step", _us),
        Col("total bytes", "bytes", units.size, narrow=False),
        Col("rate", "gb_per_s", _rate),
        Col("from", _place),
    ]
    none = "no copies were recorded" if analysis.has_accelerator else reason(analysis)
    return tabulate(columns, analysis.transfers, "Copies", none=none, most=ROWS)


def _syncs(analysis: Analysis) -> Table:
    columns = [
        Col("call", "call", _text(44)),
        Col("kind", "kind"),
        Col("calls/step", "calls_per_step", units.number),
        Col("time/step", lambda row: 1e3 * row.ms_per_step, _us),
        Col("from", _place),
    ]
    none = "no call made the host wait" if analysis.has_accelerator else reason(analysis)
    note = "An operator's row includes its runtime call: do not add them."
    return tabulate(columns, analysis.syncs, "Synchronising calls", note, none, ROWS)


def _idle(analysis: Analysis) -> Table:
    columns = [
        Col("the device is idle for", lambda row: row.cause.replace("_", " ")),
        Col("time/step", "us_per_step", _us),
        Col("of the step", "share_of_step", units.percent),
        Col("gaps", "gaps", "{:,}".format),
        Col("longest", "longest_us", _us),
    ]
    none = "the device is never idle" if analysis.has_accelerator else reason(analysis, "idle")
    return tabulate(columns, analysis.idle, "Idle time by cause", none=none)


def _communication(analysis: Analysis) -> Table:
    times = analysis.communication or {}
    keys = ("total", "exposed", "overlapped", "waiting") if times else ()
    columns = [Col("part", str), Col("time/step", lambda key: times.get(f"{key}_us_per_step"), _us)]
    return tabulate(columns, keys, "Communication", none="no collectives were recorded")


def _memory(analysis: Analysis) -> Table:
    def peak(device: dict[str, Any]) -> Cell:
        above = " above the start" if device["relative"] else ""
        key = "peak_increase_bytes" if device["relative"] else "peak_allocated_bytes"
        return Cell(device[key], lambda count: units.size(count) + above)

    def owner(device: dict[str, Any]) -> str:
        owners = device["owners_at_peak"] or [{}]
        return clean(owners[0].get("operator") or "not recorded", 60)

    columns = [
        Col("device", lambda device: str(device["device"])),
        Col("peak allocated", peak),
        Col("peak reserved", lambda device: device["peak_reserved_bytes"], units.size),
        Col("largest owner", owner),
    ]
    devices = (analysis.memory or {}).get("devices", [])
    return tabulate(columns, devices, "Memory", none="n/a: the profiler ran without profile_memory")


def loader_table(loader: Loading) -> Table:
    """The path of the batches, part by part, and supply against demand."""

    def mean(times: Sequence[float | None]) -> float | None:
        measured = [time for time in times if time is not None]
        return sum(measured) / len(measured) if measured else None

    parts = {
        "fetch (decode, transform)": "fetch_s",
        "of which the data set's transform": "transform_s",
        "collate": "collate_s",
        "in the queue, until the loop takes it": "queued_s",
        "the loop waits": "wait_s",
    }
    times = {name: [getattr(batch, field) for batch in loader.batches] for name, field in parts.items()}
    rows = [
        (name, mean(values), max((v for v in values if v is not None), default=None))
        for name, values in times.items()
    ]
    rows.append(("pin", loader.pin_s, None))
    columns = [
        Col("part", lambda row: str(row[0])),
        Col("mean", lambda row: row[1], units.duration),
        Col("longest", lambda row: row[2], units.duration),
    ]
    note = (
        f"{loader.workers} workers supply {units.number(loader.supply_samples_per_s)} samples/s, the loop "
        f"can take {units.number(loader.demand_samples_per_s)}: {loader.verdict}."
    )
    return tabulate(columns, rows, f"Loader, {len(loader.batches)} batches", note)
