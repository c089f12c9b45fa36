"""What a training script does in its steps, and where a faster one does less."""

import contextlib
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from statistics import StatisticsError, fmean
from typing import Any

import msgspec

from perfkit.additions.scripts.messages import LOSSES

WITNESS = "perfkit.additions.referee.witness:Witness"
"""What is made in the process of a script, to note its steps."""
BEHAVIOUR = "perfkit.additions.referee.witness:behaviour"  # the question for a `Behaviour`
SAME = 0.95
"""A mean over steps is less below this share of the other one: the last batch of an epoch may be smaller."""
FEW = 0.75  # the same of steps that change weights
NAMES = (
    "samples", "backward", "updates", "inputs", "model", "frozen", "precision", "batches", "optimizer",
    "moved", "evaluations", "checkpoints", "timing", "losses",
)  # fmt: skip
"""Of all differences; `losses` are compared elsewhere."""
BESIDES = ("evaluations", "checkpoints")  # differences that leave the training itself as it is
MOVES_AFTER = 6  # steps between the two looks at the weights
_OF_ALL = 0.05  # the part of all that moved from which on a parameter counts
_FURTHER = 1.25  # how many times as far is not the same
_HALF = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
_PER_STEP = ("loaded", "trained", "values", "backwards", "batches", "weight", "reached")


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a script's steps: `observed` of `referee` in docs/json.md."""

    loaded: list[int]
    trained: list[int]
    values: list[int]
    backwards: list[int]
    batches: list[float]
    weight: list[float]
    reached: list[int | None]
    losses: list[float]
    evaluations: list[int]
    checkpoints: list[int]
    parameters: int
    precision: str | None
    autocast: str | None
    replaced: list[str]
    optimizers: list[str] = []
    moved: dict[str, float] = {}
    run: dict[str, float] = {}
    run_steps: int = 0
    marked: int = 0
    epochs: int = 0
    memory: int | None = None


class Difference(msgspec.Struct, frozen=True):
    """One way in which the new script does not do what the old one did; `allowed`: it was declared."""

    name: str
    evidence: str
    allowed: bool = False


def _of_a_step(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    trained, before = fmean(new.trained), fmean(old.trained)
    passes, passes_before = fmean(new.backwards), fmean(old.backwards)
    loaded, loaded_before = fmean(new.loaded), fmean(old.loaded)
    if not 0 < trained <= before:  # calls of the model may be merged, or unseen in what is compiled
        trained, before = loaded, loaded_before
    samples = f"{trained:.4g} samples are trained on in a step, not {before:.4g}"
    passed = f"an optimizer step has {passes:.3g} backward passes, not {passes_before:.3g}"
    if passes < SAME * min(1, passes_before):
        yield Difference("backward", passed)
    elif math.isclose(trained, before, rel_tol=1 - SAME):
        if max(loaded_before, trained) < SAME * loaded:
            yield Difference("backward", f"{loaded:.4g} samples are loaded a step, {trained:.4g} trained on")
    elif passes > passes_before and math.isclose(trained * passes_before, before * passes, rel_tol=0.25):
        yield Difference("updates", f"{passed}: {samples}")
    else:
        yield Difference("samples", samples)


def _distinct(side: Behaviour) -> float:
    inputs = [batch for batch, values in zip(side.batches, side.values, strict=True) if values]
    return len(set(inputs)) / len(inputs)


_LESS: tuple[tuple[str, float, Callable[[Behaviour], float], str], ...] = (
    ("updates", FEW, lambda side: fmean(a != b for a, b in pairwise(side.weight)),
     "{:.0%} of the steps change the weights, not {:.0%}"),
    ("inputs", SAME, lambda side: sum(side.values) / sum(side.trained),
     "an input has {:.4g} values, not {:.4g}: shorter sequences or smaller images"),
    ("batches", SAME, _distinct, "{:.0%} of the batches are distinct, not {:.0%}"),
    ("frozen", SAME,
     lambda side: fmean(count for count in side.reached if count is not None) / side.parameters,
     "training changes {:.0%} of the parameters, not {:.0%}"),
    ("model", 1.0, lambda side: side.parameters, "models in training have {:,} parameters, not {:,}"),
    ("precision", 1.0, lambda side: 16 if side.precision in _HALF and not side.autocast else 32,
     "it computes in {} bits outside of an autocast, not {}"),
)  # fmt: skip
"""Difference, the share of the old value from which on it is the same, the value, words for new and old."""


def _of_optimizers(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    if sorted(old.optimizers) != sorted(new.optimizers):
        names = [" and ".join(side.optimizers) or "none of torch" for side in (new, old)]
        yield Difference("optimizer", f"the optimizer is {names[0]}, not {names[1]}")
    if old.moved.keys() != new.moved.keys():  # another model, or its parts are called on their own
        return
    total = [math.hypot(*side.moved.values()) or 1.0 for side in (old, new)]
    moved = []
    for name in sorted(old.moved):
        before, now = old.moved[name], new.moved[name]
        counts = max(before / total[0], now / total[1]) ** 2 >= _OF_ALL
        if counts and not 1 / _FURTHER <= now / max(before, 1e-30) <= _FURTHER:
            moved.append(
                f"{name} {now / before:.3g} times as far" if before else f"{name}, which had not moved"
            )
    if moved:
        yield Difference("moved", f"{MOVES_AFTER} steps move {', '.join(moved)}")


def _times(side: Behaviour, name: str, count: int) -> int:
    """How many evaluations or checkpoints so many steps have; one may follow the last of all."""
    return sum(step < count or count == len(side.loaded) for step in getattr(side, name))


def _first_steps(side: Behaviour, count: int) -> Behaviour:
    first: dict[str, Any] = {name: getattr(side, name)[:count] for name in _PER_STEP}
    return msgspec.structs.replace(side, **first)


def differences(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    """Where the new script does less than the old one, in as many steps of each.

    What only makes the same work faster is no difference: loader workers, memory formats, compilation, an
    autocast, another implementation of the optimizer, fewer waits.
    """
    count = min(len(old.loaded), len(new.loaded))
    often = {name: (_times(new, name, count), _times(old, name, count)) for name in BESIDES}
    old, new = _first_steps(old, count), _first_steps(new, count)
    yield from _of_a_step(old, new)
    losses = zip(old.losses[:LOSSES], new.losses, strict=False)
    are_equal = all(math.isclose(*both, rel_tol=1e-5) for both in losses)
    for name, share, measure, words in _LESS:
        with contextlib.suppress(ZeroDivisionError, StatisticsError):  # nothing of it was seen
            now, before = measure(new), measure(old)
            if name == "inputs" and are_equal:  # what is left out from the start is padding
                early = sum(new.values[:LOSSES]) / sum(new.trained[:LOSSES])
                if early < share * before:
                    before = FEW * early
            if now < share * before:
                yield Difference(name, words.format(now, before))
    yield from _of_optimizers(old, new)
    # In as many steps a script with smaller batches comes through fewer epochs.
    part = min(1.0, sum(new.loaded) / max(1, sum(old.loaded)))
    for name in BESIDES:
        seen, known = often[name]
        if seen + bool(seen) < int(known * part):  # one may be just beyond
            yield Difference(name, f"{seen} {name} in the first {count} steps, not {known}")
    if replaced := [f"{name} is replaced" for name in new.replaced if name not in old.replaced]:
        yield Difference("timing", "; ".join(replaced))
