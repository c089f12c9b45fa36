"""Where a step's time goes: a bar for each run, all for the same number of samples.

A run holds how long its steps take, how long they wait for data, and the step on a batch that is already on
the device. It does not hold when the device is busy: that share stands in words, at no place in the step.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from perfkit.results.run import Run
from perfkit.results.stats import MIN_EFFECT, Ratio
from perfkit.show import results, rows, sentences, simulated, style, units
from perfkit.show.rows import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WAITS = Look("waits for data", style.ORANGE, "///")
_REST = Look("everything else", style.BLUE)
_PREDICTED = Look("everything else, simulated", style.PURPLE, "--")
_FREE = Look("end if data were free", style.VERMILLION, "|")
_MOST_ROOM = 1.25
"""The end of the axis, in multiples of the longest bar: a wider interval is cut off."""


def paint(runs: Sequence[Run], figure: "Figure") -> None:
    """A bar for each run: the time that waits for data, then everything else."""
    ax, samples = figure.add_subplot(), _samples(runs)
    timed = [(step, _steps(run, samples)) for run in runs if (step := run.step_s)]
    longest = max([step.value * steps for step, steps in timed], default=0.0)
    widest = max([1.03 * step.high * steps for step, steps in timed], default=0.0)
    scale, unit = (1.0, "s") if longest >= 2 else (1e3, "ms")
    what = f"{unit} for {samples:,} samples" if samples else f"{unit}, a step"
    shares = "; the colours are shares, not places" if any(steps != 1 for _, steps in timed) else ""
    rows.frame(ax, runs, numbers, simulated.axis(f"{what}, medians{shares}", runs))
    used = set[Look]()
    for at, run in enumerate(runs):
        if not (step := run.step_s):
            continue
        steps = _steps(run, samples) * scale
        wait = step.value * (run.data_wait_share or 0.0)
        rest = _PREDICTED if run.simulated else _REST
        rows.stack(ax, at, [(wait * steps, _WAITS), ((step.value - wait) * steps, rest)])
        rows.whisker(ax, at, step, steps)
        used |= {_WAITS, rest} if wait else {rest}
        if (ceiling := run.ceiling_samples_per_s) and run.samples_per_step:
            rows.line(ax, at, run.samples_per_step / ceiling * steps, _FREE)
            used.add(_FREE)
    ax.set_xlim(0, max(1.06 * longest, min(widest, _MOST_ROOM * longest)) * scale or 1)
    rows.legend(ax, [look for look in (_WAITS, _REST, _PREDICTED, _FREE) if look in used])


def _samples(runs: Sequence[Run]) -> int:
    """For how many samples all are drawn: the most that a step has; 0 where that is not known."""
    counts = [run.samples_per_step for run in runs if run.step_s]
    return max(counts) if counts and all(counts) else 0


def _steps(run: Run, samples: int) -> float:
    """Steps of this run for as many samples."""
    return samples / run.samples_per_step if samples and run.samples_per_step else 1.0


def numbers(run: Run) -> str:
    """Step time with its interval, the share of waiting, the share in which the device is busy."""
    step, share = run.step_s, run.data_wait_share
    if not step:
        return ""
    busy = results.busy_share(run)
    clauses = [] if share is None else [f"{units.percent(share)} waits for data"]
    clauses += [] if busy is None else [f"device busy {units.percent(busy)} of it"]
    mark = f" {sentences.SIGNS['disturbed']} disturbed" if run.disturbed is not None else ""
    return "\n".join(filter(None, (f"{simulated.step_time(run)} a step{mark}", ", ".join(clauses))))


def pair(runs: Sequence[Run]) -> tuple[list[Run], Ratio | None]:
    """Before and after, and how they compare: the last run that was compared with another of these.

    Where none was compared, the last measured one alone; none where nothing was measured.
    """
    measured = [run for run in results.stages(runs) if run.samples_per_s]
    for run in reversed(measured):
        for role in ("baseline", "previous"):
            pairing = run.pairing(role)
            before = [other for other in measured if pairing and other.id == pairing.against]
            if before and (ratio := run.speedup(role)):
                return [before[0], run], ratio
    return measured[-1:], None


def headline(runs: Sequence[Run]) -> str:
    """The result in words: `AMP is 1.36× faster than baseline (1.21–1.52)`; empty where there is none."""
    both, ratio = pair(runs)
    if ratio is None:
        return f"{sentences.name(both[0])}: {simulated.step_time(both[0])} a step" if both else ""
    before, after = (sentences.clean(sentences.name(run), 40) for run in both)
    against = f"{after} against {before}: {units.ratio(ratio)}"
    match ratio.verdict:
        case "faster" | "slower":
            return f"{after} is {units.times_apart(ratio)} {ratio.verdict} than {before}"
        case "predicted faster" | "predicted slower":
            word = "faster" if ratio.is_faster else "slower"
            return f"{after} should be {units.times_apart(ratio)} {word} than {before} (predicted)"
        case "no measurable difference":
            effect = units.percent(max(ratio.half_width, MIN_EFFECT))
            return f"No measurable difference, {against}; an effect over {effect} would show"
        case "disturbed":
            return f"No verdict, other programs disturbed the rounds; {against}"
        case verdict:
            return f"{verdict.capitalize()}; {against}"
