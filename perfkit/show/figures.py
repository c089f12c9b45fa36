"""Pictures of a session: each view paints a list of runs on a figure.

A further view is a paint function, a function for the numbers of one run, and its line in `VIEWS`. matplotlib
is loaded when the first figure is drawn, so that a table costs none of its start-up.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from perfkit.errors import one_of
from perfkit.results.run import RUNG, Run
from perfkit.results.stats import Estimate
from perfkit.show import sentences, style, units
from perfkit.show.document import Figure
from perfkit.show.style import Look, Row
from perfkit.show.units import clean
from perfkit.worker.messages import KernelReport, MemoryReport

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

_LOADS = Look("loads", style.GREEN, "\\\\")
_WAITS = Look("waits for data", style.ORANGE, "///")
_REST = Look("rest of the step", style.BLUE)
_BUSY = Look("busy: a share, not places", style.SKY, "..")
_RATE = Look("samples/s", style.SKY)
_DROPPED = Look("dropped", "none")
_KINDS = {
    look.label: look
    for look in (
        Look("weights", style.BLUE),
        Look("gradients", style.SKY, "//"),
        Look("optimizer", style.PURPLE, "xx"),
        Look("batch", style.GREY, "--"),
        Look("activations", style.ORANGE, ".."),
        Look("workspace", style.YELLOW, "\\\\"),
    )
}
_TYPES = {"float32": (style.BLUE, "o"), "bfloat16": (style.ORANGE, "D"), "float16": (style.PURPLE, "s")}


class View(NamedTuple):
    """One kind of picture."""

    title: str
    numbers: Callable[[Run], str]
    """The numbers of one run that it shows, with units; empty where there are none."""
    paint: "Callable[[Sequence[Run], Drawing], None]"
    """Paints the runs on an empty figure."""
    height: Callable[[Sequence[Run]], float]
    """Inches."""


def view(name: str, runs: Sequence[Run]) -> Figure:
    """A view of runs of one session, in the order of the ladder.

    Raises:
        InvalidValue: no such view.
    """
    if name not in VIEWS:
        raise one_of(name, list(VIEWS), "view")
    kind = VIEWS[name]
    if name != "throughput":
        runs = sentences.stages(runs)
    nothing = "" if any(map(kind.numbers, runs)) else "Nothing of this was measured."
    title = kind.title
    if runs:
        first = runs[0]
        device = f"simulated {first.simulated.gpu}" if first.simulated else first.device
        where = [clean(part, 32) for part in (first.workload.rpartition(":")[2], device)]
        title = " · ".join([title, *filter(None, where)])
    alt = f"{kind.title}. {sentences.enumerated(runs, kind.numbers) if runs else nothing}"
    return Figure(name, title, alt, lambda drawing: kind.paint(runs, drawing), kind.height(runs), nothing)


def headline(runs: Sequence[Run]) -> Figure:
    """The one picture of a result: before above after on one axis of time, its title the result in words."""
    both, _ = sentences.pair(runs)
    picture, title = view("step_time", both or runs), sentences.headline(runs)
    return replace(picture, title=title, alt=f"{title} · {picture.alt}") if title else picture


def _unit(runs: Sequence[Run], unit: str) -> str:
    return f"simulated {unit}" if any(run.simulated for run in runs) else unit


# ---------------------------------------------------------------- time of a step


def _step_time(runs: Sequence[Run], drawing: "Drawing") -> None:
    """A step of each run as timelines of loader, host and device, all for the same number of samples."""
    counts = [run.samples_per_step for run in runs if run.step_s]
    samples = max(counts) if counts and all(counts) else 0
    ends = [_end(run, samples) for run in runs]
    scale, unit = (1.0, "s") if max(ends) >= 2 else (1e3, "ms")
    rows = list[Row]()
    for run, end in zip(runs, ends, strict=True):
        words = _step_numbers(run) or sentences.outcome(run) or "the time of a step is not known"
        rows += [Row("", words=f"{sentences.name(run)}: {words}"), *_lanes(run, end * scale)]
    what = f"{unit} for {samples:,} samples" if samples else f"{unit}, a step"
    several = "; of several steps: shares, not places" * any(count != samples for count in counts)
    style.rows(drawing, rows, _unit(runs, f"{what}, medians{several}"))


def _step_height(runs: Sequence[Run]) -> float:
    return 1.05 + 0.21 * sum(1 + len(_lanes(run, 1.0)) for run in runs)


def _end(run: Run, samples: int) -> float:
    """Seconds that a number of samples takes; of a step if the number is not known; 0 if nothing is."""
    if not run.step_s:
        return 0.0
    return run.step_s.value * (samples / run.samples_per_step if samples else 1.0)


def _lanes(run: Run, end: float) -> list[Row]:
    """Loader, host, copies and device until the end of a step.

    A step starts with the request for its batch: that is the place of the host's wait. Worker processes are
    not timed; of copies the bytes are known, and of a GPU at most the share of the step in which it is busy.
    """
    if not run.step_s:
        return []
    wait, workers, lanes = (run.data_wait_share or 0.0) * end, run.recipe.get("workers"), list[Row]()
    if workers:
        words = f"{workers} worker{'s' * (workers != 1)} beside the step: not timed"
        lanes = [Row("loader", words=words)]
    elif workers is not None:
        lanes = [Row("loader", [(wait, _LOADS)])]
    step = Estimate(*(value * end / run.step_s.value for value in msgspec.structs.astuple(run.step_s)))
    host = [(wait, _WAITS), (end - wait, _REST)]
    if run.device == "cpu":
        return [*lanes, Row("host and device", host, interval=step)]
    lanes.append(Row("host", host, interval=step))
    if run.h2d_bytes_per_sample is not None:
        copied = units.size(run.h2d_bytes_per_sample * run.samples_per_step)
        lanes.append(Row("copies", words=f"{copied} a step to the device; only a profile times them"))
    if (busy := sentences.busy_share(run)) is None:
        return [*lanes, Row("device", words="not timed")]
    return [*lanes, Row("device", [(busy * end, _BUSY)])]


def _step_numbers(run: Run) -> str:
    """Step time with its interval, the share of waiting, the share in which the device is busy."""
    if not run.step_s:
        return ""
    share, busy = run.data_wait_share, sentences.busy_share(run)
    facts = [f"{sentences.step_time(run)} a step{_disturbed(run)}"]
    facts += [] if share is None else [f"{units.percent(share)} waits for data"]
    facts += [] if busy is None else [f"device busy {units.percent(busy)} of it"]
    return ", ".join(facts)


def _disturbed(run: Run) -> str:
    return f" {sentences.SIGNS['disturbed']} disturbed" if run.disturbed is not None else ""


# ---------------------------------------------------------------- throughput


def _throughput(runs: Sequence[Run], drawing: "Drawing") -> None:
    """A bar for each stage with its interval; hollow where a rung was dropped."""
    rows = list[Row]()
    for run in runs:
        rate, is_dropped = run.samples_per_s, run.facts.get(RUNG, "").startswith("dropped")
        bar = [(rate.value, _DROPPED if is_dropped else _RATE)] if rate else []
        rows.append(Row(sentences.name(run), bar, _throughput_numbers(run), sentences.outcome(run), rate))
    unit = "samples/s: mean, 95% interval; ratio to the stage, or what was kept, before"
    style.rows(drawing, rows, _unit(runs, unit))


def _throughput_numbers(run: Run) -> str:
    """Rate with its interval; ratio to the stage before, with interval and verdict."""
    if not run.samples_per_s:
        return ""
    line = f"{sentences.rate(run, run.samples_per_s)} samples/s{_disturbed(run)}"
    if ratio := run.speedup("baseline" if run.is_again else "previous"):
        line += f"\n{sentences.SIGNS[ratio.verdict]} {units.ratio(ratio)} {ratio.verdict}"
    return line


# ---------------------------------------------------------------- losses


def _losses(runs: Sequence[Run], drawing: "Drawing") -> None:
    """A curve for each stage over samples, because batch sizes differ; equal ones lie on each other."""
    ax = drawing.add_subplot()
    ax.set_prop_cycle(marker=list("osD^vP*Xd<>p"), color=[*style.COLOURS, *style.COLOURS])
    for run in runs:
        if run.losses:
            ax.plot(*_curve(run), linewidth=1.4, markersize=4.5, label=clean(sentences.name(run), 24))
    ax.set(xlabel="samples trained on", ylabel="training loss")
    ax.grid()
    drawing.legend(ncols=3, loc="outside lower center")


def _curve(run: Run) -> tuple[Any, Any]:
    """(samples, losses): one value for each step."""
    losses = np.array(run.losses, dtype=float)
    return (run.samples_per_step or 1) * np.arange(1, len(losses) + 1), losses


def _loss_numbers(run: Run) -> str:
    """First and last loss, or the sample at which the loss was no longer finite."""
    if not run.losses or run.status != "ok":
        return ""
    samples, losses = _curve(run)
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        return f"{units.number(losses[bad[0]])} from sample {samples[bad[0]]:,} on"
    return f"{units.number(losses[0])} → {units.number(losses[-1], losses[0])}"


VIEWS = {
    "step_time": View("Where a step's time goes", _step_numbers, _step_time, _step_height),
    "throughput": View(
        "Throughput, stage by stage",
        _throughput_numbers,
        _throughput,
        lambda runs: style.rows_height(len(runs)),
    ),
    "losses": View("Training loss over the first steps", _loss_numbers, _losses, lambda runs: 4.2),
}


# ---------------------------------------------------------------- inside a step


def held(ledgers: Sequence[MemoryReport]) -> Figure:
    """What holds memory at the peak of a step, a bar for each recipe."""
    title = f"{'Simulated: what' if ledgers[0].simulated else 'What'} holds memory at the peak of a step"
    peaks = ", ".join(f"{ledger.recipe}: {units.size(ledger.peak)}" for ledger in ledgers)
    scale, unit = units.size_unit(max(ledger.peak for ledger in ledgers))
    rows = [
        Row(
            ledger.recipe,
            [(ledger.parts[kind] / scale, look) for kind, look in _KINDS.items()],
            units.size(ledger.peak),
        )
        for ledger in ledgers
    ]

    def paint(drawing: "Drawing") -> None:
        style.rows(drawing, rows, f"{unit} at the peak")

    return Figure("held", title, f"Memory at the peak: {peaks}", paint, style.rows_height(len(rows)))


def roofline(result: KernelReport) -> Figure:
    """What shapes reach, under what the device could do at their FLOPs per byte; both axes logarithmic."""
    roofs = [f"{name}: {peak / 1e9:,.0f} GFLOP/s" for name, peak in result.peaks.items()]
    alt = f"Roofline: {', '.join(roofs)}, copying: {result.bytes_per_s / 1e9:,.1f} GB/s"
    title = "What shapes reach, under the roofs of this device"
    return Figure("roofline", title, alt, lambda drawing: _roofline(result, drawing))


def _roofline(result: KernelReport, drawing: "Drawing") -> None:
    ax, across = drawing.add_subplot(), np.logspace(-1, 4, 200)
    for dtype, peak in result.peaks.items():
        colour, sign = _TYPES[dtype]
        shapes = [row for row in result.rows if row.dtype == dtype]
        x, y = [row.flops_per_byte for row in shapes], [row.flops_per_s / 1e9 for row in shapes]
        ax.plot(across, np.minimum(peak, across * result.bytes_per_s) / 1e9, color=colour, linewidth=1.6)
        ax.plot(x, y, sign, color=colour, label=dtype)
    if (work := result.work).flops and work.bytes:
        place = work.flops / work.bytes, work.flops / result.step_s / 1e9
        ax.plot(*place, "*", color=style.YELLOW, markersize=16, label="this training's step")
    ax.set(xscale="log", yscale="log", xlabel="FLOPs per byte read or written", ylabel="GFLOP/s")
    for axis in (ax.xaxis, ax.yaxis):  # the usual one writes mathematics, which is off in all figures
        axis.set_major_formatter("{x:g}")
    ax.legend(loc="lower right")
