"""Pictures of a trace: each draws an analysis, or the lanes of a step, on an Axes."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from perfkit import trace as traces
from perfkit.show import rows, sentences, style, units
from perfkit.show.document import Figure
from perfkit.show.rows import Look
from perfkit.trace.model import Analysis, Lane, Lanes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

PARTS = {
    "kernel": (style.BLUE, ""), "memcpy": (style.ORANGE, "//"), "memset": (style.PURPLE, "xx"),
    "communication": (style.VERMILLION, "\\\\"), "runtime": (style.SKY, "--"),
    "dataloader": (style.GREEN, "///"), "cpu_op": (style.YELLOW, ".."), "other": ("#bbbbbb", ""),
    "forward": (style.SKY, ""), "backward": (style.PURPLE, ".."), "optimizer": ("#bbbbbb", "//"),
    "annotation": ("#bbbbbb", ""), "fetch": (style.GREEN, "///"), "collate": (style.SKY, ""),
}  # fmt: skip
_MOST = 12


def reason(analysis: Analysis, figure: str = "") -> str:
    """Why a figure is not known."""
    for banner in analysis.health:
        if figure in banner.spoils:
            return f"{units.NOT_AVAILABLE}: {sentences.clean(banner.message)}"
    return f"{units.NOT_AVAILABLE}: {analysis.device['reason'] or 'the trace does not record it'}"


def utilization(analysis: Analysis) -> list[tuple[str, str, float | None, str]]:
    """The utilisation ladder, top down: name, how it is known, the share, why there is none."""
    cores = analysis.tensor_core
    rungs: list[tuple[str, str, str, float | None]] = [
        ("a kernel or a copy runs", "measured", "gpu_utilization",
         analysis.device["gpu_utilization_with_copies"]),
        ("a kernel runs", "measured", "gpu_utilization", analysis.gpu_utilization),
        ("SM efficiency", "estimated", "est_sm_efficiency", analysis.est_sm_efficiency),
        ("achieved occupancy", "estimated", "est_achieved_occupancy", analysis.est_achieved_occupancy),
        ("kernel time on Tensor Cores", "estimated", "tensor_core", cores["yes"] if cores else None),
    ]  # fmt: skip
    why = f"{units.NOT_AVAILABLE}: a trace has no NVML samples; `perfkit run` takes them"
    return [("NVML utilisation", "sampled", None, why)] + [
        (name, how, share, "" if share is not None else reason(analysis, figure))
        for name, how, figure, share in rungs
    ]


def _breakdown(analysis: Analysis, figure: "Drawing") -> None:
    """A stacked bar for each step, and for the mean."""
    ax = figure.add_subplot()
    steps = analysis.steps[:_MOST]
    names = [*(step.name.replace("ProfilerStep#", "step ") for step in steps), "mean"]
    whole = [*(step.duration_us for step in steps), analysis.mean_step_us or 0.0]
    times = [units.duration(us / 1e6) for us in whole]
    kept, _ = style.split_outliers(whole)
    note = style.outliers_note(whole, "step", lambda us: units.duration(us / 1e6))
    text = "; ".join(filter(None, ("ms; hidden time is not counted again", note)))
    rows.named(ax, names, times, text)
    for at, parts in enumerate([*(step.breakdown_us for step in steps), analysis.mean_us]):
        rows.stack(ax, at, [((us or 0.0) / 1e3, Look(part, *PARTS[part])) for part, us in parts.items()])
    ax.set_xlim(0, max(kept) * 1.03 / 1e3 or 1)
    rows.legend(ax, [Look(part, *PARTS[part]) for part, value in analysis.mean_us.items() if value])


def _operators(analysis: Analysis, figure: "Drawing") -> None:
    """Operators by self time: on the device, or on the host where there is no device."""
    ax = figure.add_subplot()
    times: dict[str, float] = {}
    for o in analysis.operators:
        own = o.device_self_us if analysis.has_accelerator else o.host_self_us
        times[o.name] = times.get(o.name, 0.0) + (own or 0.0)
    where = "device" if analysis.has_accelerator else "host"
    _ranked(ax, times, f"ms of {where} time of their own, all steps", lambda name: (style.SKY, ""))


def _kernels(analysis: Analysis, figure: "Drawing") -> None:
    """Kernels by time; colour and hatch mark those on Tensor Cores."""
    ax = figure.add_subplot()
    kinds = {"yes": (style.GREEN, ""), "no": (style.BLUE, "//"), "unknown": ("#bbbbbb", "..")}
    times = {k.name: k.total_us for k in analysis.kernels}
    cores = {k.name: k.tensor_core for k in analysis.kernels}
    _ranked(ax, times, "ms, all steps", lambda name: kinds[cores[name]])
    rows.legend(ax, [Look(f"Tensor Cores: {answer}", *look) for answer, look in kinds.items()])


def _ranked(ax: "Axes", times: dict[str, float], unit: str, look: Callable[[str], tuple[str, str]]) -> None:
    top = sorted((pair for pair in times.items() if pair[1] > 0), key=lambda pair: -pair[1])[:10]
    names = [name.removeprefix("void ").replace("at::native::", "") for name, _ in top]
    rows.named(ax, names, [units.duration(us / 1e6) for _, us in top], unit)
    for at, (name, us) in enumerate(top):
        rows.bar(ax, at, 0, us / 1e3, Look(name, *look(name)))
    ax.set_xlim(0, top[0][1] * 1.03 / 1e3 if top else 1)


def _ladder(analysis: Analysis, figure: "Drawing") -> None:
    """The share of the step in which the device works, by ever stricter definitions."""
    ax = figure.add_subplot()
    looks = {"sampled": (style.PURPLE, ".."), "measured": (style.BLUE, ""), "estimated": (style.SKY, "//")}
    rungs = utilization(analysis)
    texts = ["" if share is None else f"{units.percent(share)}, {how}" for _, how, share, _ in rungs]
    rows.named(ax, [name for name, *_ in rungs], texts, "%")
    for at, (_, how, share, why) in enumerate(rungs):
        if share is None:
            rows.reason(ax, at, why)
        else:
            rows.bar(ax, at, 0, 100 * share, Look(how, *looks[how]))
    ax.set_xlim(0, 100)
    rows.legend(ax, [Look(how, *look) for how, look in looks.items()])


def _memory(analysis: Analysis, figure: "Drawing") -> None:
    """Allocated bytes over time, and reserved ones as a dashed line."""
    ax = figure.add_subplot()
    devices = (analysis.memory or {}).get("devices", [])
    start = min((d["time_us"][0] for d in devices), default=0.0)
    for device, colour in zip(devices, (style.BLUE, style.VERMILLION, style.GREEN) * 9, strict=False):
        at = [(us - start) / 1e3 for us in device["time_us"]]
        above = " above its start" if device["relative"] else ""
        held = [count / 1e6 for count in device["allocated_bytes"]]
        ax.step(at, held, where="post", color=colour, label=f"{device['device']}: allocated{above}")
        if device["reserved_bytes"]:
            reserved = [count / 1e6 for count in device["reserved_bytes"]]
            ax.step(at, reserved, "--", where="post", color=colour, label=f"{device['device']}: reserved")
        top = max(range(len(held)), key=held.__getitem__)
        ax.annotate(
            f"peak {units.size(1e6 * held[top])}", (at[top], held[top]), (0, 3), textcoords="offset points",
            ha="right" if at[top] > max(at) / 2 else "left"
        )  # fmt: skip
    ax.margins(y=0.15)
    ax.grid()
    ax.set(xlabel="ms", ylabel="MB")
    style.legend_below(ax, 3)


def _timeline(lanes: Lanes, figure: "Drawing") -> None:
    """A step: threads, streams and copies as rows, nesting downwards in a row, phases on top."""
    ax = figure.add_subplot()
    deep = [min(1 + max((bar.depth for bar in lane.bars), default=0), 5) for lane in lanes.lanes]
    y = 1.0
    middles, used = [0.5], set()
    for phase in lanes.phases:
        colour, hatch = PARTS[phase.colour]
        place = (phase.start_us / 1e3, phase.duration_us / 1e3)
        ax.broken_barh([place], (0.1, 0.8), facecolor=colour, hatch=hatch, alpha=0.55)
        ax.axvspan(place[0], sum(place), color=colour, alpha=0.08, linewidth=0)
        if phase.duration_us > 0.04 * lanes.duration_us:
            ax.text(place[0] + place[1] / 2, 0.5, phase.name, ha="center", va="center")
    for lane, rows_of in zip(lanes.lanes, deep, strict=True):
        height = max(1.0, 0.45 * rows_of)
        for part, depth, spans in _spans(lane, rows_of):
            used.add(part)
            place = (y + 0.05 + depth * (height - 0.1) / rows_of, (height - 0.1) / rows_of)
            ax.broken_barh(spans, place, facecolor=PARTS[part][0], linewidth=0.1)
        middles.append(y + height / 2)
        y += height
        ax.axhline(y, alpha=0.25, linewidth=0.6)
    labels = [
        "phases",
        *(sentences.wrapped(lane.label, style.characters(0.2), 2) for lane in lanes.lanes),
    ]
    ax.set_yticks(middles, labels)
    ax.set_ylim(y, 0)
    ax.set_xlim(0, lanes.duration_us / 1e3)
    left_out = f"; {lanes.omitted:,} shorter events left out" if lanes.omitted else ""
    ax.set_xlabel(f"ms from the start of {lanes.name}{left_out}")
    rows.legend(ax, [Look(part, PARTS[part][0]) for part in PARTS if part in used])


def _spans(lane: Lane, levels: int) -> Iterator[tuple[str, int, list[tuple[float, float]]]]:
    """Bars grouped by colour and level; the profiler's own step marks are left out."""
    groups: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for bar in lane.bars:
        if bar.depth < levels and not bar.name.startswith("ProfilerStep#"):
            groups.setdefault((bar.colour, bar.depth), []).append((bar.start_us / 1e3, bar.duration_us / 1e3))
    return ((part, depth, spans) for (part, depth), spans in groups.items())


def views(analysis: Analysis, window: Lanes | None = None) -> list[Figure]:
    """Every picture of a trace; `window` is the step of the timeline."""
    measured = bool(analysis.steps) and analysis.mean_us["other"] is not None
    means = [(part, us) for part, us in analysis.mean_us.items() if us]
    ran = [
        (o.name, o.device_self_us if analysis.has_accelerator else o.host_self_us) for o in analysis.operators
    ]
    kernel_times = [(k.name, k.total_us) for k in analysis.kernels]
    devices = (analysis.memory or {}).get("devices", [])
    peaks = [f"{device['device']} {units.size(max(device['allocated_bytes']))}" for device in devices]
    rungs = [f"{name} {why or units.percent(share)}" for name, _, share, why in utilization(analysis)]

    def view(
        name: str, title: str, paint: "Callable[[Any, Drawing], None]", height: float, measured: bool,
        numbers: Iterable[str], data: object = analysis,
    ) -> Figure:  # fmt: skip
        nothing = "" if measured else reason(analysis)
        alt = f"{title}: {nothing or ', '.join(numbers)}"
        return Figure(name, title, alt, functools.partial(paint, data), height, nothing)

    lanes = [lane.label for lane in window.lanes] if window else []
    return [
        view("breakdown", "Where the steps' time goes", _breakdown, 4.2, measured, _named(means)),
        view("ladder", "Utilisation, from lenient to strict", _ladder, 4.0, True, rungs),
        view("operators", "Operators", _operators, 5.4, bool(ran), _named(ran[:5])),
        view("kernels", "Kernels", _kernels, 5.4, bool(kernel_times), _named(kernel_times[:5])),
        view("memory", "Memory over time", _memory, 3.6, bool(devices), peaks),
        view("timeline", "The timeline of a step", _timeline, 5.4, window is not None, lanes, window),
    ]


def _named(times: Iterable[tuple[str, float | None]]) -> list[str]:
    return [f"{sentences.clean(name, 40)} {units.duration((us or 0.0) / 1e6)}" for name, us in times]


def first_step(trace: traces.Trace) -> Lanes | None:
    """The window of a trace's first step; None if it has no steps."""
    return traces.lanes(trace) if trace.ranks and trace.ranks[0].steps.names else None
