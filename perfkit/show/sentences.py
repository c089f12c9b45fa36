"""What a run showed, in words computed from its numbers: no promises, no causes that they do not show."""

import math
import textwrap
from collections.abc import Callable, Sequence

from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.results.recordings import ORIGIN
from perfkit.results.run import Run
from perfkit.results.stats import MIN_EFFECT, Ratio
from perfkit.show import results, simulated, units

_NOTICEABLE = 0.05
"""A smaller share or change is not mentioned: blocks vary by a few percent."""

SIGNS = {"faster": "▲", "slower": "▼", "no measurable difference": "≈", "too few rounds": "?",
         "disturbed": "!", "predicted faster": "△", "predicted slower": "▽",
         "too close to predict": "◇"}  # fmt: skip
"""Of the verdicts, for those who do not see colours."""

_LOW_CEILING = "its ceiling came out below its rate, which cannot be: the machine was not steady"


def clean(text: object, width: int = 0) -> str:
    """One line of text from outside: no control characters, at most `width` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if not width or len(line) <= width else line[: max(1, width - 1)].rstrip() + "…"


def wrapped(text: str, width: int, lines: int) -> str:
    """A text on at most `lines` lines of at most `width` characters; the rest becomes an ellipsis."""
    return "\n".join(textwrap.wrap(clean(text), width, max_lines=lines, placeholder=" …"))


def name(run: Run) -> str:
    """The stage's title, else its name."""
    return clean(run.title or run.stage)


def outcome(run: Run) -> str:
    """Why there is no number: `n/a: …`, `failed: …`, `cancelled: …`; empty where there is one."""
    if run.status == "ok":
        return "" if results.rate(run) else f"{units.NOT_AVAILABLE}: nothing was measured"
    word = units.NOT_AVAILABLE if run.status == "not_applicable" else run.status
    return f"{word}: {clean(run.reason) or 'no reason was given'}"


def enumerated(runs: Sequence[Run], numbers: Callable[[Run], str]) -> str:
    """One clause for each stage: its numbers, or why there are none."""
    clauses = [(name(run), numbers(run).replace("\n", ", ") or outcome(run) or "n/a") for run in runs]
    return "; ".join(": ".join(clause) for clause in clauses) + "."


def judgement(times: float, result: Ratio) -> str:
    """A guess beside its result: within a fifth of it, off by a factor, or open."""
    factor = max(times / result.ratio, result.ratio / times)
    verdict = result.confirms(times)
    if verdict is None:
        return "open, the rounds cannot tell"
    return "within a fifth" if verdict else f"off by a factor of {factor:.2f}"


def verdicts(runs: Sequence[Run]) -> list[str]:
    """What each stage of a session showed."""
    return [verdict_sentence(run, results.previous(run, runs)) for run in runs]


def verdict_sentence(run: Run, previous: Run | None = None) -> str:
    """Did it help here, compared with the previous run, and why?"""
    against = results.speedup(run, "previous")
    again = results.speedup(run, "baseline") if results.is_again(run) else None
    broken = "; ".join(f"{clean(m.switch)}: {clean(m.evidence)}" for m in run.mechanism if not m.ok)
    if not results.rate(run):
        text = outcome(run).replace(f"{units.NOT_AVAILABLE}:", "not measured here:", 1).rstrip(".")
    elif broken:
        text = f"its mechanism is not in effect ({broken}), so its number says nothing about it"
    elif again:
        numbers = f"{again.ratio:.3f}× ({again.low:.3f}–{again.high:.3f})"
        text = f"the same recipe against itself, {numbers}: equal processes differ by this much here"
        text = "; ".join([*_disturbed(run), text])
    elif against is None:
        text = "; ".join([*_disturbed(run), _standing(run)])
    else:
        ratio = units.ratio(against).replace(" (", ", ").removesuffix(")")
        evidence = "; ".join(_evidence(run, previous, against))
        here = against.verdict if run.simulated else f"{against.verdict} here"
        here = "disturbed" if against.verdict == "disturbed" else here
        text = ": ".join(filter(None, (f"{here} ({ratio})", evidence)))
    return f"{name(run)}: {text}."


def _standing(run: Run) -> str:
    """The numbers of a run that is compared with none."""
    rate, share, efficiency = results.rate(run), results.wait_share(run), results.efficiency(run)
    clauses = [f"{simulated.estimate(run, rate)} samples/s"] if rate else []
    clauses += [] if share is None else [f"{units.percent(share)} of the step is waiting for data"]
    if results.low_ceiling(run):
        clauses.append(_LOW_CEILING)
    elif efficiency is not None:
        clauses.append(f"it reaches {units.percent(efficiency)} of what the model could do if data were free")
    return "; ".join(clauses)


def _evidence(run: Run, previous: Run | None, against: Ratio) -> list[str]:
    """The numbers that support the verdict, those that contradict it, and what there was to gain."""
    moves = _moves(run, previous) if previous else []
    close = against.verdict == "too close to predict"
    none, rounds = close or against.verdict == "no measurable difference", results.rounds(run)
    if against.verdict == "disturbed":
        return [_taken(run) or "the rounds of the stage that it is compared with were disturbed"]
    if against.verdict == "too few rounds":
        return [f"{rounds} round{'s give' if rounds != 1 else ' gives'} no verdict: measure longer"]
    helped = against.is_faster
    clauses = [text for better, text in moves if none or better == helped]
    clauses += [f"though {text}" for better, text in moves if not none and better != helped]
    if none:
        clauses += _no_room(run, previous, bool(moves))
        clauses += ["the model's error is larger than this"] if close else _power(run, against)
    elif previous and not any(better == helped for better, _ in moves):
        clauses.insert(0, "neither the wait for data nor the ceiling explains it")
    return clauses + _price(run, previous) + [_LOW_CEILING] * results.low_ceiling(run)


def _moves(run: Run, before: Run) -> list[tuple[bool, str]]:
    """What changed noticeably since the run before: whether it is better now, and in words."""
    moves = []
    waits = _both(results.wait_share, before, run)
    if waits and abs(waits[1] - waits[0]) >= _NOTICEABLE:
        moves.append((waits[1] < waits[0], f"waiting for data {_moved(*waits, units.percent)} of the step"))
    ceiling = results.ceiling_change(run, before)
    if ceiling and (ceiling.is_faster or ceiling.is_slower) and abs(ceiling.ratio - 1) >= _NOTICEABLE:
        times = units.number(ceiling.ratio, max(1.0, ceiling.ratio))
        moves.append((ceiling.ratio > 1, f"with data already on the device it computes {times}× as fast"))
    kernels, shares = _both(_kernel_s, before, run), _both(lambda one: one.utilization, before, run)
    if kernels and abs(kernels[1] / kernels[0] - 1) >= _NOTICEABLE:
        was, now = map(units.duration, kernels)
        moves.append((kernels[1] < kernels[0], f"the kernels of a sample take {now} instead of {was}"))
    elif shares and abs(shares[1] - shares[0]) >= _NOTICEABLE:
        moved = _moved(*shares, units.percent)
        moves.append((shares[1] > shares[0], f"the kernels' share of the step {moved}"))
    return moves


def _both(value: Callable[[Run], float | None], before: Run, run: Run) -> tuple[float, float] | None:
    """A value before and now; None where one of them is not known."""
    was, now = value(before), value(run)
    return None if was is None or now is None else (was, now)


def _moved(was: float, now: float, text: Callable[[float], str]) -> str:
    return f"{'fell' if now < was else 'rose'} from {text(was)} to {text(now)}"


def _kernel_s(run: Run) -> float | None:
    """Kernel time of a sample, in simulated runs."""
    known = run.simulated
    return (known.kernel_s / run.samples_per_step or None) if known and run.samples_per_step else None


def _no_room(run: Run, previous: Run | None, moved: bool) -> list[str]:
    """Why this kind of optimization had nothing to gain, where the numbers say so."""
    share, efficiency = results.wait_share(previous or run), results.efficiency(previous or run)
    bottleneck = OPTIMIZATIONS[run.stage].bottleneck if run.stage in OPTIMIZATIONS else "none"
    data, computing = bottleneck in ("data", "copy"), bottleneck in ("host", "device")
    if share is None or not (data or (computing and not run.simulated)):
        return []
    if computing:
        waits = (
            f"{units.percent(share)} of the step is waiting for data, which faster computing cannot reduce"
        )
        still = ["a batch that is already on the device is not computed faster either"]
        return [waits] if share >= _NOTICEABLE else still if previous and not moved else []
    if share >= _NOTICEABLE:
        return [] if moved else [f"{units.percent(share)} of the step is still waiting for data"]
    text = f"the step does not wait for data ({units.percent(share)} of it)"
    if efficiency is not None and efficiency < 1 - _NOTICEABLE:
        return [f"{text}, though it runs at {units.percent(efficiency)} of its ceiling"]
    return [f"{text}, so faster data would save next to nothing"]


def _power(run: Run, against: Ratio) -> list[str]:
    """How large an effect would show, and how much more measuring would show 5%."""
    clauses = [f"an effect over {units.percent(max(against.half_width, MIN_EFFECT))} would show"]
    pairing = run.pairing("previous")
    minutes = pairing.minutes_to_show(_NOTICEABLE) if pairing else None
    if minutes is not None:
        more = (
            f"{math.ceil(minutes)} more minute{'s' * (minutes > 1)}"
            if minutes > 0.5
            else "half a minute more"
        )
        clauses.append(f"about {more} would show {units.percent(_NOTICEABLE)}")
    elif against.half_width > _NOTICEABLE:
        alike = pairing and (pairing.noise or 0.0) >= _NOTICEABLE
        clauses.append(
            "more time would not show less: equal processes differ by that much"
            if alike
            else "measure longer"
        )
    return clauses


def disturbance(run: Run) -> str:
    """What other programs took, and the remedy; empty for a run that does not rest on disturbed rounds."""
    if not (taken := _taken(run)):
        return ""
    text = f"{taken}: close other programs, then run it again"
    return clean(next((warning for warning in run.warnings if "of the cores" in warning), text))


def _taken(run: Run) -> str:
    """What other programs took; by whom, and the remedy, stands among the notices, once for all runs."""
    share = results.disturbed(run)
    return "" if share is None else f"others took {units.percent(share)} of the cores"


def _disturbed(run: Run) -> list[str]:
    text = _taken(run)
    return [f"disturbed: {text}"] if text else []


def notices(runs: Sequence[Run]) -> list[str]:
    """What a reader must know before any number."""
    played = dict.fromkeys(clean(run.facts[ORIGIN]) for run in runs if ORIGIN in run.facts)
    nothing = (f"{text} Nothing was measured now." for text in played)
    return [*nothing, *simulated.notices(runs), *_doubts(runs)]


def _doubts(runs: Sequence[Run]) -> list[str]:
    apart = (
        "The ratios come from other rounds than the bars (measured by an older perfkit): trust the ratios."
    )
    contradict = any(results.contradicts(run, runs) for run in runs)
    disturbed = [run for run in runs if results.disturbed(run) is not None]
    if not disturbed:
        return [apart] * contradict
    worst = max(disturbed, key=lambda run: results.disturbed(run) or 0.0)
    measured = sum(results.rate(run) is not None for run in runs)
    whom = "every stage" if len(disturbed) == measured else ", ".join(map(name, disturbed))
    sign, text = SIGNS["disturbed"], disturbance(worst)
    return [f"Disturbed ({sign}): {text}. The numbers of {whom} rest on such rounds.", *[apart] * contradict]


def _price(run: Run, previous: Run | None) -> list[str]:
    """The memory that it cost or freed, where that is much."""
    now, before = run.peak_memory_bytes, previous.peak_memory_bytes if previous else None
    if not now or not before or 0.8 < now / before < 1.25:
        return []
    return [f"peak memory {_moved(before, now, units.size)}"]
