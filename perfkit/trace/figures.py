"""Pictures of a trace: its breakdown, operators, kernels, memory, and the timeline of a step."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from perfkit.show import style, units
from perfkit.show.document import Figure, Interactive
from perfkit.show.style import Look
from perfkit.show.units import clean, wrapped
from perfkit.trace import timeline
from perfkit.trace.model import Analysis, Lane, Lanes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

_LIGHT = "#bbbbbb"
PARTS = {
    look.label: look
    for look in (
        Look("kernel", style.BLUE),
        Look("memcpy", style.ORANGE, "//"),
        Look("memset", style.PURPLE, "xx"),
        Look("communication", style.VERMILLION, "\\\\"),
        Look("runtime", style.SKY, "--"),
        Look("dataloader", style.GREEN, "oo"),
        Look("cpu_op", style.YELLOW, ".."),
        Look("other", _LIGHT),
        Look("forward", style.SKY),
        Look("backward", style.PURPLE, ".."),
        Look("optimizer", _LIGHT, "//"),
        Look("annotation", _LIGHT),
        Look("fetch", style.GREEN, "oo"),
        Look("collate", style.SKY),
    )
}
_MOST = 12
_DEEPEST = 5


def reason(analysis: Analysis, figure: str = "") -> str:
    """Why a figure is not known."""
    for banner in analysis.health:
        if figure in banner.spoils:
            return f"{units.NOT_AVAILABLE}: {clean(banner.message)}"
    return f"{units.NOT_AVAILABLE}: {analysis.device['reason'] or 'the trace does not record it'}"


def operator_times(analysis: Analysis) -> dict[str, float]:
    """Self time by operator in µs: on the device, or on the host where there is no device."""
    times: dict[str, float] = {}
    for row in analysis.operators:
        self_us = row.device_self_us if analysis.has_accelerator else row.host_self_us
        times[row.name] = times.get(row.name, 0.0) + (self_us or 0.0)
    return times


def views(analysis: Analysis, window: Lanes | None = None) -> list[Figure]:
    """Every picture of a trace; `window` is the step of the timeline."""
    measured = bool(analysis.steps) and analysis.mean_us["other"] is not None
    devices = (analysis.memory or {}).get("devices", [])
    peaks = [f"{device['device']} {units.size(max(device['allocated_bytes']))}" for device in devices]
    operators = operator_times(analysis)
    kernels = {kernel.name: kernel.total_us for kernel in analysis.kernels}
    prefix = "Simulated: " if analysis.device["simulated"] else ""

    def view(
        name: str,
        title: str,
        paint: Callable[[Any, "Axes"], None],
        numbers: Iterable[str],
        shown: bool,
        data: object = analysis,
    ) -> Figure:
        nothing = "" if shown else reason(analysis)
        alt = f"{prefix}{title}: {nothing or ', '.join(numbers)}"

        def draw(drawing: "Drawing") -> None:
            paint(data, drawing.add_subplot())

        return Figure(name, prefix + title, alt, draw, 5.0, nothing)

    where = "device" if analysis.has_accelerator else "host"
    lanes = [lane.label for lane in window.lanes] if window else []
    return [
        view("breakdown", "Where the steps' time goes", _breakdown, _named(analysis.mean_us), measured),
        view(
            "operators",
            f"Operators by self time on the {where}",
            _operators,
            _named(operators),
            any(operators.values()),
        ),
        view("kernels", "Kernels", _kernels, _named(kernels), bool(kernels)),
        view("memory", "Memory over time", _memory, peaks, bool(devices)),
        view("timeline", "The timeline of a step", _timeline, lanes, window is not None, window),
    ]


def _named(times: dict[str, Any]) -> list[str]:
    longest = sorted(((us, name) for name, us in times.items() if us), reverse=True)[:5]
    return [f"{clean(name, 40)} {units.duration(us / 1e6)}" for us, name in longest]


def interactive(window: Lanes) -> Interactive:
    """The timeline of a step to zoom and pan in."""
    used = {bar.colour for lane in window.lanes for bar in lane.bars}
    colours = {part: look.colour for part, look in PARTS.items()}
    markup = _template().render(
        legend={part: colour for part, colour in colours.items() if part in used},
        name=clean(window.name),
        data=timeline.data(window, colours),
    )
    title = f"Timeline of {clean(window.name)}"
    return Interactive(title, markup, timeline.script(), timeline.height(window))


@functools.cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(loader=jinja2.PackageLoader("perfkit.trace", "."), autoescape=True)
    environment.policies["json.dumps_kwargs"] = {}  # the order of the parts counts
    return environment.get_template("timeline.jinja")


def _breakdown(analysis: Analysis, ax: "Axes") -> None:
    """A stacked bar for each step, and for the mean."""
    steps = analysis.steps[:_MOST]
    names = [*(step.name.replace("ProfilerStep#", "step ") for step in steps), "mean"]
    whole = [*(step.duration_us for step in steps), analysis.mean_step_us or 0.0]
    times = [units.duration(us / 1e6) for us in whole]
    reach, _ = style.split_outliers(whole)
    note = style.outliers_note(whole, "step", lambda us: units.duration(us / 1e6))
    style.named(ax, names, times, "; ".join(filter(None, ("ms; hidden time is not counted again", note))))
    for at, parts in enumerate([*(step.breakdown_us for step in steps), analysis.mean_us]):
        style.stack(ax, at, [((us or 0.0) / 1e3, PARTS[part]) for part, us in parts.items()])
    ax.set_xlim(0, max(reach) * 1.03 / 1e3 or 1)
    style.legend(ax, [PARTS[part] for part, value in analysis.mean_us.items() if value])


def _operators(analysis: Analysis, ax: "Axes") -> None:
    _ranked(ax, operator_times(analysis), lambda name: PARTS["runtime"])


def _kernels(analysis: Analysis, ax: "Axes") -> None:
    """Kernels by time; colour and hatch mark those on Tensor Cores."""
    looks = {
        "yes": Look("Tensor Cores: yes", style.GREEN),
        "no": Look("no", style.BLUE, "//"),
        "unknown": Look("unknown", _LIGHT, ".."),
    }
    cores = {kernel.name: kernel.tensor_core for kernel in analysis.kernels}
    times = {kernel.name: kernel.total_us for kernel in analysis.kernels}
    _ranked(ax, times, lambda name: looks[cores[name]])
    style.legend(ax, list(looks.values()))


def _ranked(ax: "Axes", times: dict[str, float], look: Callable[[str], Look]) -> None:
    top = sorted((pair for pair in times.items() if pair[1] > 0), key=lambda pair: -pair[1])[:10]
    names = [name.removeprefix("void ").replace("at::native::", "") for name, _ in top]
    style.named(ax, names, [units.duration(us / 1e6) for _, us in top], "ms, all steps")
    for at, (name, us) in enumerate(top):
        style.bar(ax, at, 0, us / 1e3, look(name)._replace(label=""))
    ax.set_xlim(0, top[0][1] * 1.03 / 1e3 if top else 1)


def _memory(analysis: Analysis, ax: "Axes") -> None:
    """Allocated bytes over time, and reserved ones as a dashed line."""
    devices = (analysis.memory or {}).get("devices", [])
    start = min((device["time_us"][0] for device in devices), default=0.0)
    for device, colour in zip(devices, (style.BLUE, style.VERMILLION, style.GREEN) * 9, strict=False):
        at = [(us - start) / 1e3 for us in device["time_us"]]
        above = " above its start" if device["relative"] else ""
        held = [count / 1e6 for count in device["allocated_bytes"]]
        ax.step(at, held, where="post", color=colour, label=f"{device['device']}: allocated{above}")
        if device["reserved_bytes"]:
            reserved = [count / 1e6 for count in device["reserved_bytes"]]
            ax.step(at, reserved, "--", where="post", color=colour, label=f"{device['device']}: reserved")
        top = max(range(len(held)), key=held.__getitem__)
        side = "right" if at[top] > max(at) / 2 else "left"
        peak = f"peak {units.size(1e6 * held[top])}"
        ax.annotate(peak, (at[top], held[top]), (0, 3), textcoords="offset points", ha=side)
    ax.margins(y=0.15)
    ax.grid()
    ax.set(xlabel="ms", ylabel="MB")
    style.legend_below(ax, 3)


def _timeline(window: Lanes, ax: "Axes") -> None:
    """A step: threads, streams and copies as rows, nesting downwards in a row, phases on top."""
    for phase in window.phases:
        place = (phase.start_us / 1e3, phase.duration_us / 1e3)
        look = PARTS[phase.colour]
        ax.broken_barh([place], (0.1, 0.8), facecolor=look.colour, hatch=look.hatch, alpha=0.55)
        ax.axvspan(place[0], sum(place), color=look.colour, alpha=0.08, linewidth=0)
        if phase.duration_us > 0.04 * window.duration_us:
            ax.text(place[0] + place[1] / 2, 0.5, phase.name, ha="center", va="center", size="small")
    y, middles = 1.0, [0.5]
    used = set()
    for lane in window.lanes:
        levels = min(timeline.levels(lane), _DEEPEST)
        height = max(1.0, 0.45 * levels)
        for part, depth, spans in _spans(lane):
            used.add(part)
            place = (y + 0.05 + depth * (height - 0.1) / levels, (height - 0.1) / levels)
            ax.broken_barh(spans, place, facecolor=PARTS[part].colour, linewidth=0.1)
        middles.append(y + height / 2)
        y += height
        ax.axhline(y, color=style.ink(), alpha=0.25, linewidth=0.6)
    ax.set_yticks(
        middles, ["phases", *(wrapped(lane.label, style.characters(0.2), 2) for lane in window.lanes)]
    )
    ax.set(ylim=(y, 0), xlim=(0, window.duration_us / 1e3))
    omitted = f"; {window.omitted:,} shorter events left out" if window.omitted else ""
    ax.set_xlabel(f"ms from the start of {clean(window.name)}{omitted}")
    style.legend(ax, [look._replace(hatch="") for part, look in PARTS.items() if part in used])


def _spans(lane: Lane) -> Iterator[tuple[str, int, list[tuple[float, float]]]]:
    """Bars grouped by colour and level; the profiler's own step marks are left out."""
    groups: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for bar in lane.bars:
        if bar.depth < _DEEPEST and not bar.name.startswith("ProfilerStep#"):
            groups.setdefault((bar.colour, bar.depth), []).append((bar.start_us / 1e3, bar.duration_us / 1e3))
    return ((part, depth, spans) for (part, depth), spans in groups.items())
