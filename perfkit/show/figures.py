"""Pictures of a session: each view paints a list of runs on a figure, most with a row for each stage.

A further view is a paint function, a function for the numbers of one run, and its line in `VIEWS`. matplotlib
is loaded when the first figure is drawn, so that a table costs none of its start-up.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from perfkit.errors import one_of
from perfkit.results.run import Run
from perfkit.show import figures_losses, figures_step, results, rows, sentences, simulated, style, units
from perfkit.show.document import Figure
from perfkit.show.rows import Look

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True)
class View:
    """One kind of picture.

    Args:
        tab: its title in a word or two.
        title: its heading.
        paint: paints the runs on an empty figure.
        numbers: the numbers of one run that it shows, with units; empty where there are none.
        height: inches.
        nothing: why there is nothing to draw; empty where there is something.
        again: whether it shows the baseline's second process too.
    """

    tab: str
    title: str
    paint: "Callable[[Sequence[Run], Drawing], None]"
    numbers: Callable[[Run], str]
    height: Callable[[Sequence[Run]], float] = lambda runs: style.rows_height(len(runs))
    nothing: Callable[[Sequence[Run]], str] = lambda runs: "" if runs else "Nothing was measured yet."
    again: bool = False


_GAINED, _LOST = Look("gained", style.GREEN, "//"), Look("lost", style.ORANGE, "xx")
_AGAIN = Look("the baseline again", style.GREY, "..")
_CEILING = Look("ceiling: data free", style.VERMILLION, "|")
_RESERVED = Look("reserved on top", style.SKY, "\\\\")
_FEW = 5


def view(name: str, runs: Sequence[Run]) -> Figure:
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
    if runs:
        where = (runs[0].workload.rpartition(":")[2], simulated.device(runs[0]))
        title = " · ".join([title, *filter(None, (sentences.clean(part, 32) for part in where))])
    alt = f"{kind.title}. {nothing or sentences.enumerated(runs, kind.numbers)}"
    return Figure(name, title, alt, lambda figure: kind.paint(runs, figure), kind.height(runs), nothing)


def headline(runs: Sequence[Run]) -> Figure:
    """The one picture of a result: before above after on one axis of time, its title the result in words."""
    both, _ = figures_step.pair(runs)
    picture, title = view("step_time", both or runs), figures_step.headline(runs)
    return replace(picture, title=title, alt=f"{title} · {picture.alt}") if title else picture


def others(runs: Sequence[Run]) -> dict[str, Figure]:
    """What stands behind the headline, by the words of its tab; a picture that says the same is left out."""
    both, _ = figures_step.pair(runs)
    pictures = {kind.tab: view(name, runs) for name, kind in VIEWS.items()}
    if len(both) == len(results.stages(runs)):
        del pictures[VIEWS["step_time"].tab]
    return {tab: picture for tab, picture in pictures.items() if not picture.nothing}


def figure(name: str, runs: Sequence[Run], dark: bool = False) -> "Drawing":
    """A view as a matplotlib figure; see `view`."""
    return view(name, runs).draw(dark)


def _look(runs: Sequence[Run], label: str, colour: str) -> Look:
    """The look of the runs' own bars: simulated ones differ."""
    return Look(f"{label}, simulated", style.PURPLE, "--") if simulated.any_of(runs) else Look(label, colour)


def _throughput(runs: Sequence[Run], figure: "Drawing") -> None:
    """A bar for each stage: what it kept of the previous stage's rate, and the gain or loss on it."""
    ax = figure.add_subplot()
    label = "samples/s: mean, 95% interval; ▲ ▼ ≈ ratio to the stage before (thin line)"
    if simulated.any_of(runs):
        label = "simulated samples/s, with the model's error; △ ▽ ◇ ratio to the stage before (thin line)"
    rows.frame(ax, runs, _throughput_numbers, label)
    base = _look(runs, "samples/s", style.SKY)
    for at, _run in enumerate(runs):
        _throughput_row(ax, at, runs, base)
    ax.set_xlim(0, max([*map(_extent, runs), 0.0]) * 1.03 or 1)
    ratios = [ratio for run in runs if (ratio := run.speedup("previous"))]
    present = {
        base: True,
        _GAINED: any(ratio.is_faster for ratio in ratios),
        _LOST: any(ratio.is_slower for ratio in ratios),
        _CEILING: any(run.ceiling_samples_per_s for run in runs),
        _AGAIN: any(run.is_again for run in runs),
    }
    rows.legend(ax, [look for look, shown in present.items() if shown] + rows.disturbed(ax, runs))


def _throughput_numbers(run: Run) -> str:
    """Rate with its interval; ratio to the stage before, with interval and verdict."""
    rate, against = run.samples_per_s, run.speedup("previous")
    again = run.speedup("baseline") if run.is_again else None
    if not rate:
        return ""
    lines = [f"{simulated.estimate(run, rate)} samples/s"]
    if again:
        lines.append(f"A/A {units.ratio(again)} of the baseline")
    elif against:
        lines.append(f"{sentences.SIGNS[against.verdict]} {units.ratio(against)} {against.verdict}")
    if run.disturbed is not None and not (against and against.verdict == "disturbed"):
        lines[0] += f" {sentences.SIGNS['disturbed']} disturbed"
    return "\n".join(lines)


def _extent(run: Run) -> float:
    rate = run.samples_per_s
    if not rate:
        return 0.0
    # A wide interval does not rule the axis: its ends stand at the right.
    return max(min(rate.high, 1.25 * rate.value), run.ceiling_samples_per_s or 0.0)


def _throughput_row(ax: "Axes", at: int, runs: Sequence[Run], base: Look) -> None:
    run = runs[at]
    rate, ceiling = run.samples_per_s, run.ceiling_samples_per_s
    if not rate:
        return
    other, against = run.previous(runs), run.speedup("previous")
    before = other.samples_per_s if other else None
    now, start = rate.value, rate.value / (against.ratio if against else 1.0)
    if other and before:
        # From the stage before to its rate in these rounds: straight down, unless they are not the same ones.
        ends = [runs.index(other), at]
        ax.plot([before.value, start], ends, color=style.ink(), alpha=0.45, linewidth=0.8, zorder=0.9)
    if run.is_again:
        rows.bar(ax, at, 0, now, _AGAIN)
    elif against and against.is_faster and now > start:
        rows.stack(ax, at, [(start, base), (now - start, _GAINED)])
    elif against and against.is_slower and now < start:
        rows.stack(ax, at, [(now, base), (start - now, _LOST)])
    else:
        rows.bar(ax, at, 0, now, base)
    if ceiling:
        rows.line(ax, at, ceiling, _CEILING)
    rows.whisker(ax, at, rate)


def _memory(runs: Sequence[Run], figure: "Drawing") -> None:
    """A bar for each stage; on a GPU with the memory that was reserved but not allocated."""
    ax, gpu = figure.add_subplot(), any(run.on_gpu for run in runs)
    most = max([max(run.peak_memory_bytes or 0, _reserved(run)) for run in runs], default=0)
    scale, unit = units.size_unit(most)
    what = "GPU memory, allocator's peak" if gpu else "memory of the training process (RSS, without workers)"
    rows.frame(ax, runs, _memory_numbers, simulated.axis(f"{what} [{unit}]", runs))
    base = _look(runs, "allocated", style.BLUE)
    for at, run in enumerate(runs):
        if _memory_numbers(run):
            allocated = (run.peak_memory_bytes or 0) / scale
            rows.stack(ax, at, [(allocated, base), (_reserved(run) / scale - allocated, _RESERVED)])
    ax.set_xlim(0, most / scale * 1.03 or 1)
    if gpu:
        rows.legend(ax, [base, _RESERVED])


def _reserved(run: Run) -> int:
    return (run.peak_reserved_bytes or 0) if run.on_gpu else 0


def _memory_numbers(run: Run) -> str:
    """Peaks with their unit."""
    if run.status != "ok" or run.peak_memory_bytes is None:
        return ""
    allocated = simulated.memory(run, units.size(run.peak_memory_bytes))
    if not run.on_gpu:
        return f"{allocated} RSS"
    return f"{allocated} allocated\n{units.size(_reserved(run))} reserved"


def _utilization(runs: Sequence[Run], figure: "Drawing") -> None:
    """A bar for each stage up to the median sample; every sample is a dot, the first at the top."""
    ax, base = figure.add_subplot(), _look(runs, "utilisation", style.SKY)
    label = "GPU utilisation by NVML [%], sampled"
    if simulated.any_of(runs):
        label = "simulated GPU utilisation [%]: kernel time / step"
    rows.frame(ax, runs, _utilization_numbers, label)
    for at, run in enumerate(runs):
        if samples := _samples(run):
            rows.bar(ax, at, 0, float(np.median(samples)), base)
            height = np.linspace(at - 0.24, at + 0.24, len(samples)) if len(samples) > 1 else [at]
            ax.plot(samples, height, ".", color=style.ink(), markersize=3.5, alpha=0.8)
    ax.set_xlim(0, 104)


def _samples(run: Run) -> list[float]:
    if run.status == "ok" and run.utilization is not None:
        return [100 * run.utilization]
    return run.raw.gpu_utilization_nvml if run.status == "ok" else []


def _no_utilization(runs: Sequence[Run]) -> str:
    if any(map(_samples, runs)):
        return ""
    if any(run.on_gpu for run in runs):
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
    "step_time": View("Every stage", "Where a step's time goes", figures_step.paint, figures_step.numbers),
    "throughput": View(
        "Throughput", "Throughput, stage by stage", _throughput, _throughput_numbers, again=True
    ),
    "memory": View("Memory", "Peak memory", _memory, _memory_numbers),
    "losses": View(
        "Losses", "Training loss over the first steps", figures_losses.paint, figures_losses.numbers,
        figures_losses.height, _no_losses,
    ),
    "utilization": View(
        "Utilisation", "GPU utilisation (sampled)", _utilization, _utilization_numbers,
        nothing=_no_utilization,
    ),
}  # fmt: skip
