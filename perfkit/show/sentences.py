"""What a run showed, in words computed from its numbers: no promises, no causes that they do not show."""

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
        return "" if run.samples_per_s else f"{units.NOT_AVAILABLE}: nothing was measured"
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
    return [verdict_sentence(run, run.previous(runs)) for run in runs]


def verdict_sentence(run: Run, previous: Run | None = None) -> str:
    """Did it help here, compared with the previous run, and why?"""
    against = run.speedup("previous")
    clauses = [_result(run, against)]
    if run.samples_per_s and not _broken(run) and not run.is_again:
        if against is None:
            clauses += _standing(run)
        elif against.verdict not in ("disturbed", "too few rounds"):
            clauses += _evidence(run, previous, against)
    return f"{name(run)}: {'; '.join(clauses)}."


def _result(run: Run, against: Ratio | None) -> str:  # noqa: PLR0911 - a case each
    """The first clause: what came out, or why nothing did."""
    again = run.speedup("baseline") if run.is_again else None
    taken = run.disturbed
    busy = "" if taken is None else f"other programs took {units.percent(taken)} of the cores"
    if not run.samples_per_s:
        return outcome(run).replace(f"{units.NOT_AVAILABLE}:", "not measured here:", 1).rstrip(".")
    if broken := _broken(run):
        return f"the switch is not in effect ({broken}), so the numbers say nothing about it"
    if again:
        numbers = f"{again.ratio:.3f}× ({again.low:.3f}–{again.high:.3f})"
        text = f"{numbers} of the baseline in a second process: identical processes differ by this much here"
        return f"{busy}; {text}" if busy else text
    if against is None:
        return f"{simulated.estimate(run, run.samples_per_s)} samples/s{', but ' * bool(busy)}{busy}"
    here = "" if run.simulated else " here"
    match against.verdict:
        case "disturbed":
            return f"no verdict, {busy or 'the stage before it was disturbed'} ({units.ratio(against)})"
        case "too few rounds":
            count = run.rounds
            return (
                f"no verdict from {count} round{'s' * (count != 1)}: measure longer ({units.ratio(against)})"
            )
        case "faster" | "slower":
            return f"{units.times_apart(against)} {against.verdict}{here}"
        case "predicted faster" | "predicted slower":
            return f"{units.times_apart(against)} {'faster' if against.is_faster else 'slower'} (predicted)"
        case verdict:
            return f"{verdict}{here}, {units.ratio(against)}"


def _broken(run: Run) -> str:
    """The switches that the built objects do not have as the recipe sets them."""
    return "; ".join(
        f"{clean(check.switch)}: {clean(check.evidence)}" for check in run.mechanism if not check.ok
    )


def _standing(run: Run) -> list[str]:
    """The further numbers of a run that is compared with none."""
    share, ceiling = run.data_wait_share, run.ceiling_samples_per_s
    clauses = [] if share is None else [f"{units.percent(share)} of the step waits for data"]
    return clauses + ([f"with free data it would reach {units.number(ceiling)} samples/s"] if ceiling else [])


def _evidence(run: Run, before: Run | None, against: Ratio) -> list[str]:
    """What changed in the step, what there was to gain, how well the rounds can tell, what it costs."""
    changes = [*_waiting(run, before), *_computing(run, before)] if before else []
    if not (against.is_faster or against.is_slower):
        room = [] if changes else _room(run, before or run)
        return [text for _, text in changes] + room + _precision(run, against) + _memory(run, before)
    fitting = [text for better, text in changes if better == against.is_faster]
    contrary = [f"although {text}" for better, text in changes if better != against.is_faster]
    unknown = ["neither waiting for data nor computing explains it"] if before and not fitting else []
    return fitting + unknown + contrary + _memory(run, before)


def _waiting(run: Run, before: Run) -> list[tuple[bool, str]]:
    """How the wait for data changed: whether for the better, and in words."""
    was, now = before.data_wait_share, run.data_wait_share
    if was is None or now is None or abs(now - was) < _NOTICEABLE:
        return []
    return [(now < was, f"waiting for data {_moved(was, now, units.percent)} of the step")]


def _computing(run: Run, before: Run) -> list[tuple[bool, str]]:
    """How the step without its wait for data changed; otherwise as `_waiting`."""
    change = run.ceiling_change(before)
    if change and (change.is_faster or change.is_slower) and abs(change.ratio - 1) >= _NOTICEABLE:
        times = units.times(max(change.ratio, 1 / change.ratio))
        word = "faster" if change.is_faster else "slower"
        return [(change.is_faster, f"on data that is already on the device, the step is {times} {word}")]
    was, now = results.kernel_s(before), results.kernel_s(run)
    if was and now and abs(now / was - 1) >= _NOTICEABLE:
        return [(now < was, f"the kernels' time for a sample {_moved(was, now, units.duration)}")]
    return []


def _room(run: Run, before: Run) -> list[str]:
    """Why this kind of optimization had little to gain, where the numbers say so."""
    share = before.data_wait_share
    kind = OPTIMIZATIONS[run.stage].bottleneck if run.stage in OPTIMIZATIONS else "none"
    if share is None or kind == "none" or run.simulated:
        return []
    waits = f"{units.percent(share)} of the step waits for data"
    if kind in ("data", "copy"):
        return [f"{waits} still"] if share >= _NOTICEABLE else [f"only {waits}, so there was little to gain"]
    return [f"{waits}, which faster computing cannot reduce"] if share >= _NOTICEABLE else []


def _precision(run: Run, against: Ratio) -> list[str]:
    """How large an effect would show, and how much more measuring would show 5%."""
    if against.verdict == "too close to predict":
        return ["the model's error is larger than this"]
    clauses = [f"an effect over {units.percent(max(against.half_width, MIN_EFFECT))} would show"]
    pairing = run.pairing("previous")
    if against.half_width > _NOTICEABLE and pairing and (pairing.noise or 0.0) >= _NOTICEABLE:
        clauses.append("more rounds will not help: two identical processes already differ by this much")
    elif against.half_width > _NOTICEABLE:
        clauses.append("measure longer")
    return clauses


def _memory(run: Run, before: Run | None) -> list[str]:
    """The memory that it cost or freed, where that is much."""
    now, was = run.peak_memory_bytes, before.peak_memory_bytes if before else None
    if not now or not was or 0.8 < now / was < 1.25:
        return []
    return [f"peak memory {_moved(was, now, units.size)}"]


def _moved(was: float, now: float, text: Callable[[float], str]) -> str:
    return f"{'fell' if now < was else 'rose'} from {text(was)} to {text(now)}"


def notices(runs: Sequence[Run]) -> list[str]:
    """What a reader must know before any number."""
    played = dict.fromkeys(clean(run.facts[ORIGIN]) for run in runs if ORIGIN in run.facts)
    nothing = [f"{text} It was played, not measured now." for text in played]
    return [*nothing, *simulated.notices(runs), *_disturbance(runs)]


def _disturbance(runs: Sequence[Run]) -> list[str]:
    """What other programs took, with the remedy, once for all stages that it concerns."""
    shares = {run.id: share for run in runs if (share := run.disturbed) is not None}
    disturbed = [run for run in runs if run.id in shares]
    if not disturbed:
        return []
    worst = max(disturbed, key=lambda run: shares[run.id])
    short = (
        f"other programs took {units.percent(shares[worst.id])} of the cores: close them, then run it again"
    )
    text = clean(next((warning for warning in worst.warnings if "of the cores" in warning), short))
    measured = sum(run.samples_per_s is not None for run in runs)
    stages = "every stage" if len(disturbed) == measured else ", ".join(map(name, disturbed))
    return [f"Disturbed ({SIGNS['disturbed']}): {text}. This concerns {stages}."]
