"""Pictures of a trace: where the steps' time goes, and the timeline of a step."""

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import jinja2
import msgspec

from perfkit.show import style, units
from perfkit.show.document import Figure, Interactive
from perfkit.show.style import Look, Row
from perfkit.trace.model import Analysis
from perfkit.trace.timeline import PARTS, Lanes

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_OTHER = Look("other", "#bbbbbb")
LOOKS = {
    look.label: look
    for look in (
        Look("kernel", style.BLUE),
        Look("memcpy", style.ORANGE, "//"),
        Look("memset", style.PURPLE, "xx"),
        Look("communication", style.VERMILLION, "\\\\"),
        Look("runtime", style.SKY, "--"),
        Look("dataloader", style.GREEN, "oo"),
        Look("cpu_op", style.YELLOW, ".."),
    )
}
_MOST = 12


def us(value: float | None) -> str:
    """A time in µs, in words."""
    return units.duration(None if value is None else value / 1e6)


def reason(analysis: Analysis, figure: str = "") -> str:
    """Why a figure is not known."""
    spoiled = (problem.message for problem in analysis.health if figure in problem.spoils)
    otherwise = analysis.device["reason"] or "the trace does not record it"
    return f"{units.NOT_AVAILABLE}: {next(spoiled, otherwise)}"


def breakdown(analysis: Analysis) -> Figure:
    """The parts of each step and of the mean."""
    title = f"{'Simulated: ' if analysis.device['simulated'] else ''}Where the steps' time goes"
    parts = [f"{part} {us(time)}" for part, time in analysis.mean_us.items() if time]
    nothing = "" if parts else reason(analysis)
    alt = f"{title}: {nothing or ', '.join(parts)}"
    return Figure("breakdown", title, alt, functools.partial(_breakdown, analysis), 5.0, nothing)


def _breakdown(analysis: Analysis, drawing: "Drawing") -> None:
    """A stacked bar for each step, and for the mean."""
    steps = [(step.name, step.duration_us, step.breakdown_us) for step in analysis.steps[:_MOST]]
    rows = list[Row]()
    for name, length, parts in [*steps, ("mean", analysis.mean_step_us, analysis.mean_us)]:
        pieces = [((time or 0.0) / 1e3, LOOKS.get(part, _OTHER)) for part, time in parts.items()]
        rows.append(Row(name.replace("ProfilerStep#", "step "), pieces, us(length)))
    style.rows(drawing, rows, "ms")


def interactive(window: Lanes) -> Interactive:
    """The timeline of a recording to zoom and pan in, opened at its step."""
    colours = [LOOKS.get(part, _OTHER).colour for part in PARTS]
    used = sorted({number for lane in window.lanes for row in lane.rows for number in row[5]})
    legend = {PARTS[number]: colours[number] for number in used}
    data = {**msgspec.to_builtins(window), "parts": PARTS, "colours": colours}
    name = window.steps[2][window.step]
    environment = jinja2.Environment(loader=jinja2.PackageLoader("perfkit.trace", "."), autoescape=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    markup = environment.get_template("timeline.jinja").render(legend=legend, name=name, data=data)
    script = Path(__file__).with_name("timeline.js").read_text(encoding="utf-8")
    height = 270 + sum(15 * len(lane.rows) + 7 for lane in window.lanes)
    return Interactive(f"Timeline of {name}", markup, script, height)
