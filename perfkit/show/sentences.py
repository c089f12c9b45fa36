"""What a run showed, in words computed from its numbers: no promises, no causes that they do not show.

A simulated rate is `~1,250 ±15% sim.`: about this much, within the model's error, and simulated. Other values
have the `~` alone.
"""

from collections.abc import Callable, Sequence

import numpy as np

from perfkit.ladder.catalogue import exactness
from perfkit.recipe import Recipe
from perfkit.results import parity
from perfkit.results.parity import Parity
from perfkit.results.recordings import ORIGIN
from perfkit.results.run import Run
from perfkit.results.stats import MIN_EFFECT, Estimate, Ratio
from perfkit.results.store import Entry
from perfkit.show import units
from perfkit.show.units import clean

_NOTICEABLE = 0.05
"""Blocks vary by a few percent."""

SIGNS = {"faster": "▲", "slower": "▼", "no measurable difference": "≈", "too few rounds": "?",
         "disturbed": "!", "predicted faster": "△", "predicted slower": "▽",
         "too close to predict": "◇"}  # fmt: skip
"""Of the verdicts, for those who do not see colours."""


def name(run: Run | Entry) -> str:
    """What people call it, else its title, else its stage."""
    return clean(getattr(run, "name", "") or run.title or run.stage)


def stages(runs: Sequence[Run]) -> list[Run]:
    """The runs without the A/A row, which is no stage of a ladder."""
    return [run for run in runs if not run.is_again]


def outcome(run: Run) -> str:
    """Why there is no number: `n/a: …`, `failed: …`, `cancelled: …`; empty where there is one."""
    if run.status == "ok":
        return "" if run.samples_per_s else f"{units.NOT_AVAILABLE}: nothing was measured"
    word = units.NOT_AVAILABLE if run.status == "not_applicable" else run.status
    return f"{word}: {clean(run.reason) or 'no reason was given'}"


def enumerated(runs: Sequence[Run], numbers: Callable[[Run], str]) -> str:
    """One clause for each stage: its numbers, or why there are none."""
    clauses = [(name(run), numbers(run).replace("\n", ", ") or outcome(run) or "n/a") for run in runs]
    return "; ".join(": ".join(clause) for clause in clauses) + "."


# ---------------------------------------------------------------- simulated values


def any_simulated(runs: Sequence[Run]) -> bool:
    """Whether there is a simulated run among these."""
    return any(run.simulated for run in runs)


def about(run: Run | Entry, text: str, band: float | None = None) -> str:
    """A value of a run; of a simulated one with `~`, and with the model's error, a fraction."""
    error = f" ±{units.percent(band)}" if band else ""
    return f"~{text}{error}" if run.simulated and text != units.NOT_AVAILABLE else text


def rate(run: Run | Entry, value: Estimate | None) -> str:
    """samples/s with the interval; of a simulated run, with the model's error and the scatter together."""
    if value is None or not run.simulated:
        return units.interval(value)
    band = max(value.high / value.value, value.value / value.low) - 1
    return f"{about(run, units.number(value.value), band)} sim."


def step_time(run: Run) -> str:
    """Time of a step: a median with its interval, or simulated with the model's error."""
    step = run.step_s
    if step is None or not run.simulated:
        return units.duration_interval(step)
    return about(run, units.duration(step.value), run.simulated.band)


def memory(run: Run) -> str:
    """Peak memory."""
    band = run.simulated.memory_band if run.simulated else None
    return about(run, units.size(run.peak_memory_bytes), band)


def busy_share(run: Run) -> float | None:
    """The share of time in which the device is busy, 0 to 1: NVML's median, or predicted kernel time."""
    samples = run.raw.gpu_utilization_nvml if run.status == "ok" else []
    return run.utilization or (float(np.median(samples)) / 100 if samples else None)


# ---------------------------------------------------------------- verdicts


def judgement(times: float, result: Ratio) -> str:
    """A guess beside its result: within a fifth of it, off by a factor, or open."""
    verdict = result.confirms(times)
    if verdict is None:
        return "open, the interval is too wide to tell"
    factor = max(times / result.ratio, result.ratio / times)
    return "within a fifth" if verdict else f"off by a factor of {factor:.2f}"


def result(ratio: Ratio) -> str:
    """`1.36× (1.27–1.47) faster`, or the verdict and the ratio where there is no effect."""
    if ratio.is_faster or ratio.is_slower:
        predicted = " (predicted)" * ratio.verdict.startswith("predicted")
        return f"{units.times_apart(ratio)} {'faster' if ratio.is_faster else 'slower'}{predicted}"
    return f"{ratio.verdict}, {units.ratio(ratio)}"


def pair(runs: Sequence[Run]) -> tuple[list[Run], Ratio | None]:
    """Before and after, and how they compare: the last run that was compared with another of these.

    Where none was compared, the last measured one alone; none where nothing was measured.
    """
    measured = [run for run in stages(runs) if run.samples_per_s]
    for run in reversed(measured):
        for role in ("baseline", "previous"):
            pairing = run.pairing(role)
            before = [other for other in measured if pairing and other.id == pairing.against]
            if before and (ratio := run.speedup(role)):
                return [before[0], run], ratio
    return measured[-1:], None


def headline(runs: Sequence[Run]) -> str:
    """The result in words: `AMP is 1.36× (1.21–1.52) faster than baseline`; empty where there is none."""
    both, ratio = pair(runs)
    if ratio is None:
        return f"{name(both[0])}: {step_time(both[0])} a step" if both else ""
    before, after = (clean(name(run), 40) for run in both)
    if ratio.is_faster or ratio.is_slower:
        return f"{after} is {result(ratio)} than {before}"
    return f"{after} against {before}: {result(ratio)}{_precision(ratio)}"


def verdicts(runs: Sequence[Run]) -> list[str]:
    """What each stage of a session showed."""
    return [verdict_sentence(run, run.previous(runs)) for run in runs]


def verdict_sentence(run: Run, previous: Run | None = None) -> str:
    """Did it help here, compared with the previous run, and why?"""
    against = run.speedup("baseline" if run.is_again else "previous")
    broken = [f"{clean(check.switch)}: {clean(check.evidence)}" for check in run.mechanism if not check.ok]
    if run.samples_per_s is None:
        text = outcome(run).rstrip(".")
    elif broken:
        text = f"the switch is not in effect ({'; '.join(broken)}), so the numbers say nothing about it"
    elif against is None:
        share, ceiling = run.data_wait_share, run.ceiling_samples_per_s
        text = f"{rate(run, run.samples_per_s)} samples/s"
        text += f"; {units.percent(share)} of the step waits for data" if share is not None else ""
        text += f"; with free data it would reach {units.number(ceiling)} samples/s" if ceiling else ""
    elif run.is_again:
        text = f"{units.ratio(against)} of the baseline, the same recipe in a second process"
    elif against.verdict in ("disturbed", "too few rounds"):
        text = f"{result(against)}; measure {'longer' if against.verdict != 'disturbed' else 'again'}"
    else:
        text = "; ".join([result(against) + _precision(against), *reasons(run, previous)])
    return f"{name(run)}: {text}."


def _precision(against: Ratio) -> str:
    """How large an effect would show, where there is none."""
    if against.verdict == "too close to predict":
        return "; the model's error is larger than this"
    shows = f"; an effect over {units.percent(max(against.half_width, MIN_EFFECT))} would show"
    return shows * (against.verdict == "no measurable difference")


def reasons(run: Run, before: Run | None) -> list[str]:
    """What became of the parts of a step: waiting for data, computing, memory."""
    if before is None:
        return []
    facts = []
    if run.data_wait_share is not None and before.data_wait_share is not None:
        waits = _moved(before.data_wait_share, run.data_wait_share, 1.0, units.percent)
        facts.append(f"waiting for data {waits} of the step")
    if change := run.ceiling_change(before):
        facts.append(f"computing alone: {result(change)}")
    if run.simulated and before.simulated:
        was, now = before.simulated.kernel_s, run.simulated.kernel_s
        was, now = was / (before.samples_per_step or 1), now / (run.samples_per_step or 1)
        facts.append(f"the kernels' time for a sample {_moved(was, now, was, units.duration)}")
    if (held := before.peak_memory_bytes) and run.peak_memory_bytes:
        facts.append(f"peak memory {_moved(held, run.peak_memory_bytes, held, units.size)}")
    return facts


def _moved(was: float, now: float, whole: float, text: Callable[[float], str]) -> str:
    """`fell from 3.40 GB to 2.60 GB`: by more than blocks vary, as a part of the whole."""
    if abs(now - was) < _NOTICEABLE * whole:
        return f"stays at {text(now)}"
    return f"{'fell' if now < was else 'rose'} from {text(was)} to {text(now)}"


def training(run: Run, before: Run | None, proof: Parity | None) -> str:
    """Whether a run trains as the one before: a parity check, their losses, or why there are neither."""
    if proof:
        return proof.describe().removeprefix(f"{proof.title}: ")
    if run.simulated:
        return f"{units.NOT_AVAILABLE}: a simulated device computes no numbers"
    if before is None or not (run.losses and before.losses):
        return f"{units.NOT_AVAILABLE}: there are no losses of both sides"
    exact = exactness(Recipe.from_dict(run.recipe), Recipe.from_dict(before.recipe))
    check = parity.losses(run.losses, before.losses, exact, run.recipe.get("amp", "off") != "off")
    return f"the losses: {check.evidence}"


# ---------------------------------------------------------------- before any number


def notices(runs: Sequence[Run]) -> list[str]:
    """What a reader must know before any number."""
    origins = dict.fromkeys(clean(run.facts[ORIGIN]) for run in runs if ORIGIN in run.facts)
    lines = [f"{origin.partition(', by ')[0]}: played, not measured now." for origin in origins]
    if known := next((run.simulated for run in runs if run.simulated), None):
        lines.append(f"Simulated {known.gpu}: no kernel ran. Values are ~predicted ±the model's error.")
    disturbed = [run for run in runs if run.disturbed is not None]
    if disturbed:
        worst = max(disturbed, key=lambda run: run.disturbed or 0.0)
        measured = sum(run.samples_per_s is not None for run in runs)
        which = "every stage" if len(disturbed) == measured else ", ".join(map(name, disturbed))
        short = f"other programs took {units.percent(worst.disturbed)} of the cores: close them, repeat it"
        text = clean(next((text for text in worst.warnings if "of the cores" in text), short))
        lines.append(f"Disturbed ({SIGNS['disturbed']}): {text}. This concerns {which}.")
    return lines
