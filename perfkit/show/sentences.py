"""What a run showed, in words that follow from its numbers: no promises, and no causes beyond them.

A value of a simulated run is `~1,250 (1,060–1,480)`: a prediction, with the model's error as its interval.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import exactness
from perfkit.recipe import Recipe, switches
from perfkit.results import MIN_EFFECT, Parity, Ratio, Run, parity, stats
from perfkit.show import units
from perfkit.show.units import clean

_PREDICTED = ("predicted faster", "predicted slower")
_NOTICEABLE = 0.05  # blocks vary by a few percent

SIGNS = {"faster": "▲", "slower": "▼", "no measurable difference": "≈", "undecided": "?",
         "predicted faster": "△", "predicted slower": "▽",
         "too close to predict": "◇"}  # fmt: skip
"""The signs of the verdicts, for readers who do not see colours."""
DISTURBED = "!"  # marks a rate that other programs disturbed; it never changes the verdict


def run_name(run: Run) -> str:
    """The title of a run, or its stage if it has none."""
    return clean(run.title or run.stage)


def stages(runs: Sequence[Run]) -> list[Run]:
    """The runs without the A/A row, which is not a stage of a ladder."""
    return [run for run in runs if not run.is_again]


def outcome(run: Run) -> str:
    """Why a run has no number: `n/a: …`, `failed: …`, `cancelled: …`; empty if it has one."""
    if run.status == "ok":
        return "" if run.samples_per_s else f"{units.NOT_AVAILABLE}: nothing was measured"
    word = units.NOT_AVAILABLE if run.status == "not_applicable" else run.status
    return f"{word}: {clean(run.reason) or 'no reason was given'}"


def about(run: Run, text: str) -> str:
    """A value of a run, with `~` if the run is simulated."""
    return f"~{text}" if run.simulated and text != units.NOT_AVAILABLE else text


def rate(run: Run) -> str:
    """samples/s with the interval."""
    return about(run, units.interval(run.samples_per_s))


def step_time(run: Run) -> str:
    """The time of a step: the median with its interval."""
    return about(run, units.duration_interval(run.step_s))


def busy_share(run: Run) -> float | None:
    """The share of time in which the device is busy, 0 to 1: NVML's median, or predicted kernel time."""
    samples = run.raw.gpu_utilization_nvml if run.status == "ok" else []
    return run.utilization or (float(np.median(samples)) / 100 if samples else None)


def result(ratio: Ratio) -> str:
    """`1.36× (1.27–1.47) as fast`, or the verdict and the ratio if there is no effect."""
    if ratio.is_faster or ratio.is_slower:
        predicted = " (predicted)" if ratio.verdict in _PREDICTED else ""
        return f"{units.ratio(ratio)} as fast{predicted}"
    return f"{ratio.verdict}, {units.ratio(ratio)}"


def pair(runs: Sequence[Run]) -> tuple[list[Run], Ratio | None]:
    """Before, after, and their ratio, of the last two of these that were compared; else all measured runs."""
    measured = {run.id: run for run in stages(runs) if run.samples_per_s}
    for run in reversed(measured.values()):
        for role in ("baseline", "previous"):
            pairing = run.pairing(role)
            ratio = run.speedup(role)
            if pairing and ratio and pairing.against in measured:
                return [measured[pairing.against], run], ratio
    return list(measured.values()), None


def headline(runs: Sequence[Run]) -> str:
    """The result in words: `AMP: 1.36× (1.21–1.52) as fast as baseline`; empty if there is none."""
    both, ratio = pair(runs)
    if ratio is None:
        return f"{run_name(both[0])}: {step_time(both[0])} a step" if len(both) == 1 else ""
    before, after = (clean(run_name(run), 40) for run in both)
    is_open = "" if ratio.is_faster or ratio.is_slower else f"{ratio.verdict}, "
    predicted = "predicted " if ratio.verdict in _PREDICTED else ""
    return f"{after}: {is_open}{predicted}{units.ratio(ratio)} as fast as {before}{_open(ratio)}"


def verdicts(runs: Sequence[Run]) -> list[str]:
    """What each stage of a session showed."""
    return [verdict(run, run.previous(runs)) for run in runs]


def verdict(run: Run, before: Run | None = None) -> str:
    """Whether a stage helped here, and why: how its parts differ from those of the run `before`."""
    ratio = run.speedup("baseline" if run.is_again else "previous")
    broken = [f"{clean(check.name)}: {clean(check.evidence)}" for check in run.mechanism if not check.ok]
    if run.samples_per_s is None:
        text = outcome(run).rstrip(".")
    elif broken:
        text = f"the switch is not in effect ({'; '.join(broken)}), so the numbers say nothing about it"
    elif ratio is None:
        text = _alone(run)
    elif run.is_again:
        text = f"{units.ratio(ratio)} of the baseline, the same recipe in a second process"
    else:
        text = "; ".join([result(ratio) + _open(ratio), *reasons(run, before)])
    return f"{run_name(run)}: {text}."


def _alone(run: Run) -> str:
    text = f"{rate(run)} samples/s"
    if run.data_wait_share is not None:
        text += f"; {units.percent(run.data_wait_share)} of the step waits for data"
    if ceiling := run.ceiling_samples_per_s:
        text += f"; on a cached batch, with no loading, {units.number(ceiling)} samples/s"
    return text


def _open(ratio: Ratio) -> str:
    """What would decide an open verdict, or how large a difference there may be nevertheless."""
    farther = max(ratio.high - 1, 1 / ratio.low - 1, MIN_EFFECT)  # the end that is farther from 1
    most = f"{math.ceil(round(1000 * farther, 6)) / 10:g}%"  # rounded up
    words = {
        "no measurable difference": f"; any difference is at most {most}",
        "undecided": "; more rounds would decide",
        "too close to predict": "; the model's error is larger than this",
    }
    return words.get(ratio.verdict, "")


def reasons(run: Run, before: Run | None) -> list[str]:
    """How the parts of a step changed: waiting for data, compute, memory."""
    if before is None:
        return []
    facts = []
    if run.data_wait_share is not None and before.data_wait_share is not None:
        waits = _moved(before.data_wait_share, run.data_wait_share, 1.0, units.percent)
        facts.append(f"waiting for data {waits} of the step")
    if _computes_otherwise(run, before):
        was, now = map(units.number, (before.ceiling_samples_per_s, run.ceiling_samples_per_s))
        facts.append(f"compute only: {was} → {now} samples/s")
    if run.simulated and before.simulated:
        kernels = before.simulated.kernel_s / (before.samples_per_step or 1)
        after = run.simulated.kernel_s / (run.samples_per_step or 1)
        facts.append(f"the kernels' time for a sample {_moved(kernels, after, kernels, units.duration)}")
    peak = before.peak_memory_bytes
    if peak and run.peak_memory_bytes:
        facts.append(f"peak memory {_moved(peak, run.peak_memory_bytes, peak, units.size)}")
    return facts


def _computes_otherwise(run: Run, before: Run) -> bool:
    """Whether the few slices on a cached batch show that the two compute at different rates."""
    if not (run.ceiling_samples_per_s and before.ceiling_samples_per_s):
        return False
    logs = [np.log(side.raw.ceiling_samples_per_s) for side in (run, before)]
    change = stats.difference(*(stats.nested(rates, [rates.size], np.ones(rates.size)) for rates in logs))
    return abs(change.centre) > change.half


def _moved(was: float, now: float, whole: float, text: Callable[[float], str]) -> str:
    """`fell from 3.40 GB to 2.60 GB`, if it changed by a larger part of the whole than blocks vary."""
    if text(was) == text(now):
        return f"stays at {text(now)}"
    if abs(now - was) < _NOTICEABLE * whole:
        return f"hardly changes, {text(was)} → {text(now)}"
    return f"{'fell' if now < was else 'rose'} from {text(was)} to {text(now)}"


def training(run: Run, before: Run | None, proof: Parity | None = None) -> str:
    """Whether a run trains as the one before: a parity check, their losses, or why there is neither."""
    if proof:
        return f"Parity: {proof.outcome}"
    if run.simulated:
        return f"First losses: {units.NOT_AVAILABLE}: a simulated device computes no numbers"
    if before is None or not (run.losses and before.losses):
        return f"First losses: {units.NOT_AVAILABLE}: the losses of one side are not known"
    try:
        recipe, other = Recipe.from_dict(run.recipe), Recipe.from_dict(before.recipe)
    except InvalidValue as problem:  # a switch of a different version of perfkit
        return f"First losses: {units.NOT_AVAILABLE}: {problem.what}"
    expected = exactness(recipe, other, run.device)
    check = parity.check_losses(run.losses, before.losses, expected, recipe.amp != "off")
    if expected == "changes training":
        return "First losses: different, because a step has more or fewer samples"
    data = [switches()[name].label for name in recipe.diff(other) if switches()[name].needs == "workload"]
    apart = f"different, because {', '.join(data)} gives other inputs" if data else "not the same"
    return f"First losses: {'the same' if check.ok else apart} ({check.evidence})"


def notices(runs: Sequence[Run]) -> list[str]:
    """What a reader must know before reading any number."""
    origins = dict.fromkeys(clean(run.origin.describe()) for run in runs if run.origin)
    lines = [f"{origin}. Not measured on this machine." for origin in origins]
    if simulated := next((run.simulated for run in runs if run.simulated), None):
        band = "the intervals of ~predicted values include the model's error"
        lines.append(f"Simulated {simulated.gpu}: no kernel ran; {band}.")
    if disturbed := [run for run in runs if run.disturbed is not None]:
        worst = max(disturbed, key=lambda run: run.disturbed or 0.0)
        affected = ", ".join(map(run_name, disturbed))
        lines.append(f"Disturbed ({DISTURBED}): {disturbance(worst)}. Affected: {affected}.")
    return lines


def disturbance(run: Run) -> str:
    """What other programs took while a disturbed run was measured, and what to do about it."""
    taken = run.disturbed or 0.0
    text = f"other programs took {taken:.0%} of the cores"
    if run.busiest:
        text += f" ({busiest(run.busiest.program, run.busiest.share, taken)})"
    return f"{text}, so this holds only under that load. Close them and run it again"


def busiest(program: str, share: float, taken: float) -> str:
    """The busiest program that can be seen, if a notable part of what others `taken` is its `share`."""
    if share > taken / 4:
        return f"{clean(program)} {share:.0%}"
    return "many short-lived ones, or ones that cannot be seen from here"
