"""Pictures of a session: each view draws a list of runs on an Axes, most with a row for each stage.

A further view is a draw function, a function for the numbers of one run, and its line in `VIEWS`. matplotlib
is loaded when the first figure is drawn, so that a table costs none of its start-up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from perfkit.errors import one_of
from perfkit.results.run import Run
from perfkit.show import (
    document,
    figures_losses,
    figures_step,
    results,
    rows,
    sentences,
    simulated,
    style,
    units,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn


@dataclass(frozen=True)
class View:
    """One kind of picture."""

    tab: str
    """Its title in a word or two."""
    title: str
    draw: Callable[[Sequence[Run], Axes, str], None]
    """Draws the runs on the axes, text and lines in the ink colour; nothing else."""
    numbers: Callable[[Run], str]
    """The numbers of one run that it shows, with units; empty where there are none."""
    height: Callable[[Sequence[Run]], float] = style.rows_height
    """Inches at ordinary type."""
    nothing: Callable[[Sequence[Run]], str] = lambda runs: "" if runs else "Nothing was measured yet."
    """Why there is nothing to draw; empty where there is something."""
    again: bool = False
    """Whether it shows the baseline's second process too."""


_FEW = 5


def _throughput(runs: Sequence[Run], ax: Axes, ink: str) -> None:
    """A bar for each stage: what it kept of the previous stage's rate, and the gain or loss on it."""
    label = "samples/s: mean, 95% interval; ▲ ▼ ≈ ratio to the stage before (thin line)"
    if simulated.any_of(runs):
        label = "simulated samples/s, with the model's error; △ ▽ ◇ ratio to the stage before (thin line)"
    rows.frame(ax, ink, runs, _throughput_numbers, label)
    for at, run in enumerate(runs):
        _throughput_row(ax, ink, at, run, runs)
    ax.set_xlim(0, max([*map(_extent, runs), 0.0]) * 1.03 or 1)
    entries = [_base(runs, "samples/s", style.SKY)]
    ratios = [ratio for run in runs if (ratio := results.speedup(run, "previous"))]
    entries += [("gained", style.GREEN, style.GAIN_HATCH)] if any(ratio.is_faster for ratio in ratios) else []
    entries += [("lost", style.ORANGE, style.LOSS_HATCH)] if any(ratio.is_slower for ratio in ratios) else []
    entries += [("ceiling: data free", style.VERMILLION, "|")] if any(map(results.ceiling, runs)) else []
    entries += (
        [("the baseline again", style.GREY, style.AGAIN_HATCH)] if any(map(results.is_again, runs)) else []
    )
    rows.legend(ax, ink, [*entries, *rows.disturbed(ax, ink, runs)])


def _look(run: Run, colour: str) -> tuple[str, str]:
    """Colour and hatch of a run's own bar: those of a simulated one are its own."""
    return (style.SIMULATED, style.SIMULATED_HATCH) if run.simulated else (colour, "")


def _base(runs: Sequence[Run], text: str, colour: str) -> rows.Look:
    """The same for the legend."""
    chosen = next((run for run in runs if run.simulated), None)
    return (f"{text}, simulated" if chosen else text, *(_look(chosen, colour) if chosen else (colour, "")))


def _throughput_numbers(run: Run) -> str:
    """Rate with its interval; ratio to the stage before, with interval and verdict."""
    rate, against = results.rate(run), results.speedup(run, "previous")
    again = results.speedup(run, "baseline") if results.is_again(run) else None
    if not rate:
        return ""
    lines = [f"{simulated.estimate(run, rate)} samples/s"]
    if again:
        lines.append(f"A/A {units.ratio(again)} of the baseline")
    elif against:
        lines.append(f"{sentences.SIGNS[against.verdict]} {units.ratio(against)} {against.verdict}")
    if results.disturbed(run) is not None and "disturbed" not in lines[-1]:
        lines[0] += f" {sentences.SIGNS['disturbed']} disturbed"
    return "\n".join(lines)


def _extent(run: Run) -> float:
    rate = results.rate(run)
    if not rate:
        return 0.0
    # A wide interval does not rule the axis: its ends stand at the right.
    return max(min(rate.high, 1.25 * rate.value), results.ceiling(run) or 0.0)


def _throughput_row(ax: Axes, ink: str, at: int, run: Run, runs: Sequence[Run]) -> None:
    rate, ceiling = results.rate(run), results.ceiling(run)
    if not rate:
        return
    other, against = results.previous(run, runs), results.speedup(run, "previous")
    before = results.rate(other) if other else None
    gained, lost = bool(against and against.is_faster), bool(against and against.is_slower)
    now, start = rate.value, rate.value / (against.ratio if against else 1.0)
    if other and before:
        # From the stage before to its rate in these rounds: straight down, unless they are not the same ones.
        ends = [runs.index(other), at]
        ax.plot([before.value, start], ends, color=ink, alpha=0.45, linewidth=0.8, zorder=0.9)
    if results.is_again(run):
        rows.bar(ax, ink, at, 0, now, style.GREY, style.AGAIN_HATCH)
    else:
        rows.bar(ax, ink, at, 0, min(now, start) if gained else now, *_look(run, style.SKY))
    if gained and now > start:
        rows.bar(ax, ink, at, start, now - start, style.GREEN, style.GAIN_HATCH)
    if lost and now < start:
        rows.bar(ax, ink, at, now, start - now, style.ORANGE, style.LOSS_HATCH)
    if ceiling:
        ax.plot([ceiling, ceiling], [at - 0.42, at + 0.42], color=style.VERMILLION, linewidth=2.5)
    rows.whisker(ax, ink, at, rate)


def _memory(runs: Sequence[Run], ax: Axes, ink: str) -> None:
    """A bar for each stage; on a GPU with the memory that was reserved but not allocated."""
    gpu = any(map(results.on_gpu, runs))
    most = max(map(_most, runs), default=0.0)
    scale, unit = units.size_unit(most)
    what = "GPU memory, allocator's peak" if gpu else "memory of the training process (RSS, without workers)"
    rows.frame(ax, ink, runs, _memory_numbers, simulated.axis(f"{what} [{unit}]", runs))
    for at, run in enumerate(runs):
        if not _memory_numbers(run):
            continue
        own = (run.peak_memory_bytes or 0) / scale
        spare = (_reserved(run) / scale - own, style.SKY, style.SPARE_HATCH)
        rows.stack(ax, ink, at, [(own, *_look(run, style.BLUE)), spare])
    ax.set_xlim(0, most / scale * 1.03 or 1)
    if gpu:
        spare_key = ("reserved on top", style.SKY, style.SPARE_HATCH)
        rows.legend(ax, ink, [_base(runs, "allocated", style.BLUE), spare_key])


def _reserved(run: Run) -> int:
    return (run.peak_reserved_bytes or 0) if results.on_gpu(run) else 0


def _most(run: Run) -> float:
    return float(max(run.peak_memory_bytes or 0, _reserved(run))) if run.status == "ok" else 0.0


def _memory_numbers(run: Run) -> str:
    """Peaks with their unit."""
    if run.status != "ok" or run.peak_memory_bytes is None:
        return ""
    own = simulated.memory(run, units.size(run.peak_memory_bytes))
    return f"{own} allocated\n{units.size(_reserved(run))} reserved" if results.on_gpu(run) else f"{own} RSS"


def _utilization(runs: Sequence[Run], ax: Axes, ink: str) -> None:
    """A bar for each stage up to the median sample; every sample is a dot, the first at the top."""
    label = "GPU utilisation by NVML [%], sampled"
    if simulated.any_of(runs):
        label = "simulated GPU utilisation [%]: kernel time / step"
    rows.frame(ax, ink, runs, _utilization_numbers, label)
    for at, run in enumerate(runs):
        samples = _samples(run)
        if samples:
            rows.bar(ax, ink, at, 0, float(np.median(samples)), *_look(run, style.SKY))
            height = np.linspace(at - 0.24, at + 0.24, len(samples)) if len(samples) > 1 else [at]
            ax.plot(samples, height, ".", color=ink, markersize=3.5, alpha=0.8)
    ax.set_xlim(0, 104)


def _samples(run: Run) -> list[float]:
    if run.status == "ok" and run.utilization is not None:
        return [100 * run.utilization]
    return run.raw.gpu_utilization_nvml if run.status == "ok" else []


def _no_utilization(runs: Sequence[Run]) -> str:
    if any(map(_samples, runs)):
        return ""
    if any(map(results.on_gpu, runs)):
        return "No sample of the GPU's utilisation: the runs were too short for NVML, or NVML is not there."
    return "No GPU in this run."


def _utilization_numbers(run: Run) -> str:
    """The median sample, and the number of samples."""
    samples = _samples(run)
    if not samples:
        return ""
    if run.simulated:
        return simulated.cell(run, f"{samples[0]:.0f}%")
    few = ", few" if len(samples) < _FEW else ""
    return f"{np.median(samples):.0f}% median\n{len(samples)} sample{'s' if len(samples) > 1 else ''}{few}"


def _no_losses(runs: Sequence[Run]) -> str:
    if not runs:
        return "Nothing was measured yet."
    return simulated.LOSSES if all(run.simulated or run.status != "ok" for run in runs) else ""


VIEWS: dict[str, View] = {
    "step_time": View(
        "Every stage", "Where a step's time goes", figures_step.draw, figures_step.numbers,
        figures_step.height,
    ),
    "throughput": View(
        "Throughput", "Throughput, stage by stage", _throughput, _throughput_numbers, again=True
    ),
    "memory": View("Memory", "Peak memory", _memory, _memory_numbers),
    "losses": View(
        "Losses", "Training loss over the first steps", figures_losses.draw, figures_losses.numbers,
        figures_losses.height, nothing=_no_losses,
    ),
    "utilization": View(
        "Utilisation", "GPU utilisation (sampled)", _utilization, _utilization_numbers,
        nothing=_no_utilization,
    ),
}  # fmt: skip


def view(name: str, runs: Sequence[Run]) -> document.Figure:
    """A view of runs of one session, in the order of the ladder.

    Raises:
        InvalidValue: no such view.
    """
    if name not in VIEWS:
        raise one_of(name, list(VIEWS), "view")
    kind = VIEWS[name]
    runs = runs if kind.again else results.stages(runs)
    nothing, title = kind.nothing(runs), kind.title
    if simulated.any_of(runs):
        title = title.replace("(sampled)", "(kernel time / step)")
    for run in runs[:1]:
        where = (
            sentences.clean(run.workload.rpartition(":")[2], 32),
            sentences.clean(simulated.device(run), 32),
        )
        title = " · ".join([title, *filter(None, where)])
    alt = f"{kind.title}. {nothing or sentences.enumerated(runs, kind.numbers)}"
    return document.Figure(
        name, title, alt, lambda ax, ink: kind.draw(runs, ax, ink), kind.height(runs), nothing
    )


def headline(runs: Sequence[Run]) -> document.Figure:
    """The one picture of a result: before above after on one axis of time, its title the result in words."""
    both, _ = figures_step.pair(runs)
    picture, title = view("step_time", both or runs), figures_step.headline(runs)
    return replace(picture, title=title, alt=f"{title} · {picture.alt}") if title else picture


def others(runs: Sequence[Run]) -> dict[str, document.Figure]:
    """What stands behind the headline, by the words of its tab; a picture that says the same is left out."""
    both, _ = figures_step.pair(runs)
    pictures = {kind.tab: view(name, runs) for name, kind in VIEWS.items()}
    if len(both) == len(results.stages(runs)):
        del pictures[VIEWS["step_time"].tab]
    return {tab: picture for tab, picture in pictures.items() if not picture.nothing}


def figure(name: str, runs: Sequence[Run], dark: bool = False, large: bool = False) -> Drawn:
    """A view as a finished matplotlib figure; see `view` and `document.Figure.draw`."""
    return view(name, runs).draw(dark, large)
