"""The tables of a trace's analysis as text: terminal, notebook and page show the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit.show import sentences, units
from perfkit.trace.model import Analysis

if TYPE_CHECKING:
    from perfkit.trace import TraceComparison
    from perfkit.trace.loading import Loading

ROWS = 12
"""Most rows of a long table; the JSON has them all."""
_RANK = {"error": 0, "warning": 1, "info": 2}


class Section(NamedTuple):
    """A table. Without rows, `note` says why; else it is what a reader must know beside it."""

    title: str
    columns: tuple[str, ...]
    rows: list[list[str]]
    note: str = ""


def reason(analysis: Analysis, figure: str = "") -> str:
    """Why a figure is not known."""
    for banner in analysis.health:
        if figure in banner.spoils:
            return f"{units.NOT_AVAILABLE}: {sentences.clean(banner.message)}"
    return f"{units.NOT_AVAILABLE}: {analysis.device['reason'] or 'the trace does not record it'}"


def ladder(analysis: Analysis) -> list[tuple[str, str, float | None, str]]:
    """The utilisation ladder, top down: name, how it is known, the share, why there is none."""
    cores = analysis.tensor_core
    rungs: list[tuple[str, str, str, float | None]] = [
        ("NVML utilisation", "sampled", "", None),
        ("a kernel or a copy runs", "measured", "gpu_utilization",
         analysis.device["gpu_utilization_with_copies"]),
        ("a kernel runs", "measured", "gpu_utilization", analysis.gpu_utilization),
        ("SM efficiency", "estimated", "est_sm_efficiency", analysis.est_sm_efficiency),
        ("achieved occupancy", "estimated", "est_achieved_occupancy", analysis.est_achieved_occupancy),
        ("kernel time on Tensor Cores", "estimated", "tensor_core", cores["yes"] if cores else None),
    ]  # fmt: skip
    found = [
        (name, how, share, "" if share is not None else reason(analysis, figure))
        for name, how, figure, share in rungs
    ]
    nvml = f"{units.NOT_AVAILABLE}: a trace has no NVML samples; `perfkit run` takes them"
    return [(*found[0][:3], nvml), *found[1:]]


def sections(analysis: Analysis, findings: Iterable[Any] = ()) -> list[Section]:
    """Every table of an analysis, the health banner first, the diagnosis last."""
    return [
        _health(analysis), _steps(analysis), _breakdown(analysis), _ladder(analysis), _operators(analysis),
        _kernels(analysis), _transfers(analysis), _syncs(analysis), _idle(analysis),
        _communication(analysis), _memory(analysis), diagnosis(findings),
    ]  # fmt: skip


def _us(value: float | None) -> str:
    return units.NOT_AVAILABLE if value is None else units.duration(value / 1e6)


def _share(value: float | None) -> str:
    return units.NOT_AVAILABLE if value is None else units.percent(value)


def _size(value: float | None) -> str:
    return units.NOT_AVAILABLE if value is None else units.size(value)


def _place(*parts: str | None) -> str:
    return sentences.clean(" · ".join(filter(None, parts)), 60) or "not recorded"


def _more(rows: Sequence[object]) -> str:
    return f"The first {ROWS} of {len(rows)}; --json has all." if len(rows) > ROWS else ""


def _health(analysis: Analysis) -> Section:
    banners = sorted(analysis.health, key=lambda banner: _RANK.get(banner.severity, 0))
    rows = [[b.severity, sentences.clean(b.message), ", ".join(b.spoils) or "nothing"] for b in banners]
    return Section(
        "Health of the trace", ("severity", "what", "figures it spoils"), rows, "" if rows else "sound"
    )


def _steps(analysis: Analysis) -> Section:
    parts = [part for part in analysis.mean_us if any(s.breakdown_us[part] for s in analysis.steps)]
    several = len({s.rank for s in analysis.steps}) > 1
    rows = [
        [f"rank {s.rank} " * several + sentences.clean(s.name, 40).removeprefix("ProfilerStep"),
         *(units.number(us / 1e3) if us is not None else units.NOT_AVAILABLE
           for us in (s.duration_us, *(s.breakdown_us[p] for p in parts)))]
        for s in analysis.steps
    ]  # fmt: skip
    note = "Parts that are not here are 0, or n/a: see the mean step. " if len(parts) < 8 else ""
    note = note + _more(rows) if rows else reason(analysis)
    return Section("Steps (ms)", ("step", "duration", *parts), rows[:ROWS], note)


def _breakdown(analysis: Analysis) -> Section:
    whole = analysis.mean_step_us
    rows = []
    for part, mean in analysis.mean_us.items():
        share = None if mean is None or not whole else mean / whole
        rows.append([part, _us(mean), _share(share), _us(analysis.exposed_and_hidden_us.get(part, mean))])
    note = reason(analysis, "mean_us") if None in analysis.mean_us.values() else ""
    return Section("Mean step", ("part", "exposed", "of the step", "exposed + hidden"), rows, note)


def _ladder(analysis: Analysis) -> Section:
    rows = [
        [name, how, why if share is None else units.percent(share)]
        for name, how, share, why in ladder(analysis)
    ]
    cores = analysis.tensor_core
    note = f"Tensor Cores, by kernel name: {units.percent(cores['unknown'])} unknown." if cores else ""
    return Section("Utilisation ladder", ("of the step, or as named", "known how", "share"), rows, note)


def _operators(analysis: Analysis) -> Section:
    rows = [
        [sentences.clean(o.name, 60), sentences.clean(o.input_shapes or "not recorded", 44), f"{o.calls:,}",
         *map(_us, (o.host_self_us, o.host_total_us, o.device_self_us, o.device_total_us))]
        for o in analysis.operators[:ROWS]
    ]  # fmt: skip
    columns = ("operator", "shapes", "calls", "host self", "host total", "device self", "device total")
    return Section(
        "Operators", columns, rows, _more(analysis.operators) if rows else "no operators were recorded"
    )


def _kernels(analysis: Analysis) -> Section:
    rows = [
        [sentences.clean(k.name, 60), f"{k.calls:,}", _us(k.total_us), _us(k.mean_us),
         units.NOT_AVAILABLE if k.blocks_per_sm is None else units.number(k.blocks_per_sm),
         _share(k.occupancy), k.tensor_core, _place(k.operator, k.frame)]
        for k in analysis.kernels[:ROWS]
    ]  # fmt: skip
    columns = (
        "kernel", "calls", "total", "mean", "blocks/SM", "occupancy", "Tensor Cores", "launched by",
    )  # fmt: skip
    return Section("Kernels", columns, rows, _more(analysis.kernels) if rows else reason(analysis))


def _transfers(analysis: Analysis) -> Section:
    rows = [
        [t.direction, t.host_memory or "not recorded", units.number(t.calls_per_step), _us(t.us_per_step),
         _size(t.bytes), units.NOT_AVAILABLE if t.gb_per_s is None else f"{units.number(t.gb_per_s)} GB/s",
         _place(t.operator, t.frame)]
        for t in analysis.transfers[:ROWS]
    ]  # fmt: skip
    columns = (
        "copy", "host memory", "calls/step", "time/step", "bytes in all", "rate", "from",
    )  # fmt: skip
    none = "no copies were recorded" if analysis.has_accelerator else reason(analysis)
    return Section("Copies", columns, rows, _more(analysis.transfers) if rows else none)


def _syncs(analysis: Analysis) -> Section:
    rows = [
        [sentences.clean(s.call, 44), s.kind, units.number(s.calls_per_step), _us(1e3 * s.ms_per_step),
         _place(s.operator, s.frame)]
        for s in analysis.syncs[:ROWS]
    ]  # fmt: skip
    none = "no call made the host wait" if analysis.has_accelerator else reason(analysis)
    none = "An operator's row includes its runtime call: do not add them." if rows else none
    return Section("Synchronising calls", ("call", "kind", "calls/step", "time/step", "from"), rows, none)


def _idle(analysis: Analysis) -> Section:
    rows = [
        [i.cause.replace("_", " "), _us(i.us_per_step), _share(i.share_of_step), str(i.gaps),
         _us(i.longest_us)]
        for i in analysis.idle
    ]  # fmt: skip
    none = "the device is never idle" if analysis.has_accelerator else reason(analysis, "idle")
    columns = ("the device is idle for", "time/step", "of the step", "gaps", "longest")
    return Section("Idle time by cause", columns, rows, "" if rows else none)


def _communication(analysis: Analysis) -> Section:
    found = analysis.communication or {}
    keys = ("total", "exposed", "overlapped", "waiting")
    rows = [[key, _us(found.get(f"{key}_us_per_step"))] for key in keys] if found else []
    return Section(
        "Communication", ("part", "time/step"), rows, "" if rows else "no collectives were recorded"
    )


def _memory(analysis: Analysis) -> Section:
    rows = []
    for d in (analysis.memory or {}).get("devices", []):
        owner = (d["owners_at_peak"] or [{}])[0]
        peak = d["peak_increase_bytes"] if d["relative"] else d["peak_allocated_bytes"]
        rows.append(
            [d["device"], f"{_size(peak)}{' above the start' if d['relative'] else ''}",
             _size(d["peak_reserved_bytes"]), _place(owner.get("operator"))]
        )  # fmt: skip
    note = "" if rows else "n/a: the profiler ran without profile_memory"
    return Section("Memory", ("device", "peak allocated", "peak reserved", "greatest owner"), rows, note)


def diagnosis(findings: Iterable[Any]) -> Section:
    """What stands out, with its evidence, the switch to try and the bound of its gain."""
    rows = []
    for f in findings:
        told = ", ".join(f"{key} {_plain(value)}" for key, value in f.evidence.items())
        bound = f"{units.number(f.gain_at_most)}×" if f.gain_at_most else "without bound"
        rows.append([f.bottleneck, sentences.clean(f.message), told, ", ".join(f.try_next) or "—", bound])
    columns = ("bottleneck", "what", "evidence", "try next", "gain at most")
    return Section("Diagnosis", columns, rows, "" if rows else "nothing stands out")


def loading(found: Loading | None) -> Section:
    """The way of the batches, by its parts, and supply against demand."""
    if found is None:
        return Section("Loader", (), [], "n/a: nothing was loaded during the profile")
    parts: dict[str, list[float | None]] = {
        "fetch (decode, transform)": [b.fetch_s for b in found.batches],
        "of it: the data set's transform": [b.transform_s for b in found.batches],
        "collate": [b.collate_s for b in found.batches],
        "queue, until the loop takes it": [b.queued_s for b in found.batches],
        "the loop waits": [b.wait_s for b in found.batches],
    }
    rows = []
    for name, all_values in parts.items():
        values = [value for value in all_values if value is not None]
        rows.append(
            [name, units.duration(sum(values) / len(values)), units.duration(max(values))]
            if values
            else [name, units.NOT_AVAILABLE, units.NOT_AVAILABLE]
        )
    rows.append(["pin", units.NOT_AVAILABLE if found.pin_s is None else units.duration(found.pin_s), ""])
    note = (
        f"Supply {units.number(found.supply_samples_per_s)} samples/s by {found.workers} workers, demand "
        f"{units.number(found.demand_samples_per_s)}: {found.verdict}."
    )
    return Section(f"Loader, {len(found.batches)} batches", ("part", "mean", "longest"), rows, note)


def _plain(value: object) -> str:
    if isinstance(value, float):
        return units.number(value)
    if isinstance(value, dict):
        return "; ".join(f"{sentences.clean(key, 40)} {_plain(inner)}" for key, inner in value.items())
    return sentences.clean(
        ", ".join(sentences.clean(v, 40) for v in value) if isinstance(value, list) else value, 100
    )


def comparison(found: TraceComparison) -> list[Section]:
    """What changed from the first trace to the other."""
    (a, b), parts = found.mean_step_us, found.parts_us
    rows = [["step", _us(a), _us(b)], *([part, _us(x), _us(y)] for part, (x, y) in parts.items())]
    made = [Section("Mean step, this and the other", ("part", "this", "other"), rows)]
    for title, changes in (
        (f"Operators ({found.operator_time} time of their own, per step)", found.operators),
        ("Kernels (per step)", found.kernels),
    ):
        changed = [c for c in changes if c.status != "same"]
        rows = [
            [sentences.clean(c.name, 60), c.status, _us(c.a_us_per_step), _us(c.b_us_per_step),
             units.number(c.a_calls_per_step), units.number(c.b_calls_per_step)]
            for c in changed[:ROWS]
        ]  # fmt: skip
        columns = ("name", "changed", "this", "other", "calls", "calls, other")
        made.append(Section(title, columns, rows, _more(changed) if rows else "nothing changed"))
    return made
