"""A trace's analysis as sections: what stands out, the pictures, steps, work, waiting, memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from perfkit.show import sentences, units
from perfkit.show.document import Code, Content, Figure, Section, Table
from perfkit.trace import figures as figures_trace
from perfkit.trace.figures import reason, utilization
from perfkit.trace.model import Analysis
from perfkit.trace.timeline_page import timeline

if TYPE_CHECKING:
    from perfkit.trace import Lanes, TraceComparison
    from perfkit.trace.diagnosis import Bottleneck
    from perfkit.trace.loading import Loading

ROWS = 12
"""Most rows of a long table; the JSON has them all."""
_SHARES = ("share", "shorter", "utilization", "efficiency", "tensor_core")
"""What is in the names of numbers that are shares."""
_RANK = {"error": 0, "warning": 1, "info": 2}


def sections(
    analysis: Analysis,
    findings: Iterable[Bottleneck] = (),
    window: Lanes | None = None,
    loader: Sequence[Table] = (),
) -> list[Content]:
    """Everything that an analysis says.

    Args:
        analysis: of a trace.
        findings: what stands out.
        window: a step for the timeline.
        loader: tables of the loader, of a profile of our own.
    """
    files = ", ".join(name.replace("\\", "/").rpartition("/")[2] for name in analysis.files)
    return [
        f"{files} · {analysis.device['name'] or analysis.device['kind']}",
        Section("What stands out", [_health(analysis), diagnosis(findings)]),
        Section("Figures", [_titled(analysis, view) for view in figures_trace.views(analysis, window)]),
        Section("Timeline", [timeline(window)] if window else []),
        Section("Where a step goes", [_steps(analysis), _mean_step(analysis), *loader]),
        Section("How well the device is used", [_utilization(analysis), _idle(analysis)]),
        Section("Work", [_operators(analysis), _kernels(analysis)]),
        Section("Copies and waits", [_transfers(analysis), _syncs(analysis)]),
        Section("Ranks and memory", [_communication(analysis), _memory(analysis)]),
    ]


def _titled(analysis: Analysis, view: Figure) -> Figure:
    """A figure that says so where its trace is simulated."""
    title = f"Simulated: {view.title[0].lower()}{view.title[1:]}"
    return replace(view, title=title) if analysis.device["simulated"] else view


def _us(value: float | None) -> str:
    return units.duration(None if value is None else value / 1e6)


def _place(*parts: str | None) -> str:
    return sentences.clean(" · ".join(filter(None, parts)), 60) or "not recorded"


def _table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], none: str, narrow: Sequence[str] = ()
) -> Table:
    """The first rows, and how many there are; without rows, why there are none."""
    more = f"The first {ROWS} of {len(rows)}; --json has all." if len(rows) > ROWS else ""
    return Table(columns, rows[:ROWS], title, more if rows else none, narrow)


def _health(analysis: Analysis) -> Table:
    banners = sorted(analysis.health, key=lambda banner: _RANK.get(banner.severity, 0))
    rows = [[b.severity, b.message, ", ".join(b.spoils) or "nothing"] for b in banners]
    return _table("Health of the trace", ("severity", "what", "figures it spoils"), rows, "sound")


def diagnosis(findings: Iterable[Bottleneck]) -> Table:
    """What stands out, with its evidence, the switch to try and the bound of its gain."""
    rows = []
    for f in findings:
        evidence = ", ".join(_said(key, value) for key, value in f.evidence.items())
        bound = f"{units.number(f.gain_at_most)}×" if f.gain_at_most else "no bound"
        rows.append([f.bottleneck, f.message, evidence, ", ".join(f.try_next) or "—", bound])
    columns = ("bottleneck", "what", "evidence", "try next", "gain at most")
    note = "" if rows else "nothing stands out"
    return Table(columns, rows, "Diagnosis", note, ("bottleneck", "what", "try next", "gain at most"))


def edits(diffs: Iterable[tuple[str, str]]) -> Section:
    """What each suggested switch changes in a training program: headings with their diffs."""
    shown = [Section(heading, [Code(text, "diff")]) for heading, text in diffs]
    return Section("The edits, in perfkit's own training program", shown, folded=True)


def _said(key: str, value: object) -> str:
    """A number behind a diagnosis in words; its unit is in its name."""
    in_us, words = "_us" in key, key.replace("_us", "").replace("_", " ")
    match value:
        case bool():
            return words if value else f"not {words}"
        case float() if in_us:
            said = _us(value)
        case float() if any(share in key for share in _SHARES):
            said = units.percent(value)
        case float() if "bytes" in key:
            return f"{units.size(value)} {words.removeprefix('bytes ')}"
        case float():
            said = units.number(value)
        case dict():
            parts = (f"{sentences.clean(name, 40)} {_us(inner)}" for name, inner in value.items())
            said = "; ".join(parts)
        case list():
            said = ", ".join(sentences.clean(item, 40) for item in value)
        case None:
            said = "n/a"
        case _:
            said = sentences.clean(value, 100)
    return f"{words} {said}"


def _steps(analysis: Analysis) -> Table:
    parts = [part for part in analysis.mean_us if any(s.breakdown_us[part] for s in analysis.steps)]
    several = len({s.rank for s in analysis.steps}) > 1
    rows = [
        [f"rank {s.rank} " * several + sentences.clean(s.name, 40).removeprefix("ProfilerStep"),
         *(units.number(None if us is None else us / 1e3)
           for us in (s.duration_us, *(s.breakdown_us[part] for part in parts)))]
        for s in analysis.steps
    ]  # fmt: skip
    table = _table("Steps (ms)", ("step", "duration", *parts), rows, reason(analysis))
    missing = "Parts that are missing here are 0 or n/a: see the mean step. " * (len(parts) < 8)
    return replace(table, note=missing + table.note) if rows else table


def _mean_step(analysis: Analysis) -> Table:
    whole = analysis.mean_step_us
    rows = []
    for part, mean in analysis.mean_us.items():
        share = None if mean is None or not whole else mean / whole
        hidden_too = analysis.exposed_and_hidden_us.get(part, mean)
        rows.append([part, _us(mean), units.percent(share), _us(hidden_too)])
    note = reason(analysis, "mean_us") if None in analysis.mean_us.values() else ""
    return Table(("part", "exposed", "of the step", "exposed + hidden"), rows, "Mean step", note)


def _utilization(analysis: Analysis) -> Table:
    rows = [
        [name, how, why if share is None else units.percent(share)]
        for name, how, share, why in utilization(analysis)
    ]
    cores = analysis.tensor_core
    note = f"Tensor Cores, by kernel name: {units.percent(cores['unknown'])} unknown." if cores else ""
    return Table(("of the step, or as named", "how it is known", "share"), rows, "Utilisation ladder", note)


def _operators(analysis: Analysis) -> Table:
    rows = [
        [sentences.clean(o.name, 60), sentences.clean(o.input_shapes or "not recorded", 44), f"{o.calls:,}",
         *map(_us, (o.host_self_us, o.host_total_us, o.device_self_us, o.device_total_us))]
        for o in analysis.operators
    ]  # fmt: skip
    columns = ("operator", "shapes", "calls", "host self", "host total", "device self", "device total")
    narrow = ("operator", "calls", "host self", "device self")
    return _table("Operators", columns, rows, "no operators were recorded", narrow)


def _kernels(analysis: Analysis) -> Table:
    rows = [
        [sentences.clean(k.name, 60), f"{k.calls:,}", _us(k.total_us), _us(k.mean_us),
         units.number(k.blocks_per_sm), units.percent(k.occupancy), k.tensor_core,
         _place(k.operator, k.frame)]
        for k in analysis.kernels
    ]  # fmt: skip
    columns = (
        "kernel", "calls", "total", "mean", "blocks/SM", "occupancy", "Tensor Cores", "launched by",
    )  # fmt: skip
    narrow = ("kernel", "calls", "total", "mean", "occupancy")
    return _table("Kernels", columns, rows, reason(analysis), narrow)


def _transfers(analysis: Analysis) -> Table:
    rows = [
        [t.direction, t.host_memory or "not recorded", units.number(t.calls_per_step), _us(t.us_per_step),
         units.size(t.bytes), f"{units.number(t.gb_per_s)} GB/s" if t.gb_per_s is not None else "n/a",
         _place(t.operator, t.frame)]
        for t in analysis.transfers
    ]  # fmt: skip
    columns = ("copy", "host memory", "calls/step", "time/step", "total bytes", "rate", "from")
    none = "no copies were recorded" if analysis.has_accelerator else reason(analysis)
    return _table("Copies", columns, rows, none, ("copy", "time/step", "rate", "from"))


def _syncs(analysis: Analysis) -> Table:
    rows = [
        [sentences.clean(s.call, 44), s.kind, units.number(s.calls_per_step), _us(1e3 * s.ms_per_step),
         _place(s.operator, s.frame)]
        for s in analysis.syncs[:ROWS]
    ]  # fmt: skip
    none = "no call made the host wait" if analysis.has_accelerator else reason(analysis)
    note = "An operator's row includes its runtime call: do not add them." if rows else none
    return Table(("call", "kind", "calls/step", "time/step", "from"), rows, "Synchronising calls", note)


def _idle(analysis: Analysis) -> Table:
    rows = [
        [i.cause.replace("_", " "), _us(i.us_per_step), units.percent(i.share_of_step), str(i.gaps),
         _us(i.longest_us)]
        for i in analysis.idle
    ]  # fmt: skip
    none = "the device is never idle" if analysis.has_accelerator else reason(analysis, "idle")
    columns = ("the device is idle for", "time/step", "of the step", "gaps", "longest")
    return _table("Idle time by cause", columns, rows, none)


def _communication(analysis: Analysis) -> Table:
    times = analysis.communication or {}
    keys = ("total", "exposed", "overlapped", "waiting")
    rows = [[key, _us(times.get(f"{key}_us_per_step"))] for key in keys] if times else []
    return _table("Communication", ("part", "time/step"), rows, "no collectives were recorded")


def _memory(analysis: Analysis) -> Table:
    rows = []
    for d in (analysis.memory or {}).get("devices", []):
        owner = (d["owners_at_peak"] or [{}])[0]
        peak = d["peak_increase_bytes"] if d["relative"] else d["peak_allocated_bytes"]
        rows.append(
            [d["device"], f"{units.size(peak)}{' above the start' if d['relative'] else ''}",
             units.size(d["peak_reserved_bytes"]), _place(owner.get("operator"))]
        )  # fmt: skip
    columns = ("device", "peak allocated", "peak reserved", "largest owner")
    return _table("Memory", columns, rows, "n/a: the profiler ran without profile_memory")


def loading(loader: Loading | None) -> Table:
    """The path of the batches, part by part, and supply against demand."""
    if loader is None:
        return Table((), [], "Loader", "n/a: nothing was loaded during the profile")
    parts: dict[str, list[float | None]] = {
        "fetch (decode, transform)": [b.fetch_s for b in loader.batches],
        "of which the data set's transform": [b.transform_s for b in loader.batches],
        "collate": [b.collate_s for b in loader.batches],
        "in the queue, until the loop takes it": [b.queued_s for b in loader.batches],
        "the loop waits": [b.wait_s for b in loader.batches],
    }
    rows = []
    for name, times in parts.items():
        measured = [time for time in times if time is not None]
        mean, most = (sum(measured) / len(measured), max(measured)) if measured else (None, None)
        rows.append([name, units.duration(mean), units.duration(most)])
    rows.append(["pin", units.duration(loader.pin_s), ""])
    note = (
        f"{loader.workers} workers supply {units.number(loader.supply_samples_per_s)} samples/s, the loop "
        f"can take {units.number(loader.demand_samples_per_s)}: {loader.verdict}."
    )
    return Table(("part", "mean", "longest"), rows, f"Loader, {len(loader.batches)} batches", note)


def comparison(changes: TraceComparison) -> Section:
    """What changed from the first trace to the other."""
    means = [["step", *map(_us, changes.mean_step_us)]]
    means += [[part, *map(_us, both)] for part, both in changes.parts_us.items()]
    tables = [Table(("part", "this", "other"), means, "Mean step, this and the other")]
    for title, lines in (
        (f"Changed operators ({changes.operator_time} self time, per step)", changes.operators),
        ("Changed kernels (per step)", changes.kernels),
    ):
        rows = [
            [sentences.clean(c.name, 60), c.status, _us(c.a_us_per_step), _us(c.b_us_per_step),
             units.number(c.a_calls_per_step), units.number(c.b_calls_per_step)]
            for c in lines if c.status != "same"
        ]  # fmt: skip
        columns = ("name", "changed", "this", "other", "calls", "calls, other")
        tables.append(_table(title, columns, rows, "nothing changed"))
    return Section("What changed", tables)
