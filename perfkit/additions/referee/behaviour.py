"""What a training script does in its steps, and where a faster script does less."""

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import fmean
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from perfkit import lookup
from perfkit.additions.scripts.messages import LOSSES

WITNESS = "perfkit.additions.referee.witness:Witness"  # made in the process of a script
BEHAVIOUR = "perfkit.additions.referee.witness:behaviour"  # the question for a `Behaviour`
SAME = 0.95  # a mean below this share of the other is less: the last batch of an epoch may be smaller
FEW = 0.75  # the same for the steps that change weights
_TABLES = lookup.toml(__package__, "behaviour")
NAMES: list[str] = _TABLES["names"]
LIMIT: Any = SimpleNamespace(**_TABLES["limits"])
OUTSIDE = ("evaluations", "checkpoints")  # differences outside the training itself
MOVES_AFTER = 6  # steps between the two looks at the weights
PER_STEP = ("loaded", "trained", "values", "backwards", "batches", "weight", "reached")  # fields


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """The observed steps of a script: `observed` of `referee` in docs/json.md."""

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
    left_out: int = 0
    samples_left_out: int = 0

    @property
    def steps(self) -> int:
        return len(self.loaded) + self.left_out

    def times(self, name: str, count: int) -> int:
        """How many `evaluations` or `checkpoints` are in the first `count` steps, or follow the last one."""
        return sum(step < count or count == self.steps for step in getattr(self, name))

    @property
    def samples(self) -> int:
        return (sum(self.trained) or sum(self.loaded)) + self.samples_left_out


class Difference(msgspec.Struct, frozen=True):
    """One difference between the new script and the old one; `allowed` if the user declared it."""

    name: str
    evidence: str
    allowed: bool = False


class MeanStep(NamedTuple):
    """Means of the steps of a script."""

    loaded: float  # samples
    trained: float  # samples
    passes: float  # backward passes


def other_samples(old: MeanStep, new: MeanStep) -> str | None:
    """The evidence that a step trains on another number of samples."""
    if math.isclose(new.trained, old.trained, rel_tol=1 - SAME):
        return None
    return f"{new.trained:.4g} samples are trained on in a step, not {old.trained:.4g}"


def fewer_passes(old: MeanStep, new: MeanStep) -> str | None:
    """The evidence of steps without a backward pass, or of loaded samples that go through none."""
    if new.passes < SAME * min(1, old.passes):
        return _passes(old, new)
    if not other_samples(old, new) and max(old.loaded, new.trained) < SAME * new.loaded:
        return f"{new.loaded:.4g} samples are loaded a step, {new.trained:.4g} trained on"
    return None


def fewer_updates(old: MeanStep, new: MeanStep) -> str | None:
    """The evidence that an update has more backward passes, and as many more samples."""
    samples = other_samples(old, new)
    grow_alike = math.isclose(new.trained * old.passes, old.trained * new.passes, rel_tol=0.25)
    if samples and new.passes > old.passes and grow_alike:
        return f"{_passes(old, new)}: {samples}"
    return None


def _passes(old: MeanStep, new: MeanStep) -> str:
    return f"an optimizer step has {new.passes:.3g} backward passes, not {old.passes:.3g}"


def _step_differences(sides: Sequence[Behaviour]) -> Iterator[Difference]:
    """The first difference in what a step trains on, which explains the others."""
    old, new = (MeanStep(fmean(side.loaded), fmean(side.trained), fmean(side.backwards)) for side in sides)
    if not 0 < new.trained <= old.trained:  # calls may be merged, or hidden in compiled code
        old, new = (mean._replace(trained=mean.loaded) for mean in (old, new))
    for name, find in (("backward", fewer_passes), ("updates", fewer_updates), ("samples", other_samples)):
        if evidence := find(old, new):
            yield Difference(name, evidence)
            return


def _amounts(side: Behaviour) -> dict[str, float]:
    """The observed amounts that a faster script must not reduce, by the name of the difference."""
    is_half = side.precision in _TABLES["half"] and not side.autocast
    inputs = [batch for batch, values in zip(side.batches, side.values, strict=True) if values]
    trained = [count for count in side.reached if count is not None]
    amounts = {"model": float(side.parameters), "precision": 16.0 if is_half else 32.0}
    if len(side.weight) > 1:
        amounts["updates"] = fmean(before != after for before, after in pairwise(side.weight))
    if sum(side.trained):
        amounts["inputs"] = sum(side.values) / sum(side.trained)
    if inputs:
        amounts["batches"] = len(set(inputs)) / len(inputs)
    if trained and side.parameters:
        amounts["frozen"] = fmean(trained) / side.parameters
    return amounts


def _inputs_without_padding(old: Behaviour, new: Behaviour) -> float | None:
    """The mean size of the new script's first inputs, if it is smaller at the same losses."""
    losses = zip(old.losses[:LOSSES], new.losses, strict=False)
    starts_alike = all(math.isclose(*pair, rel_tol=1e-5) for pair in losses)
    early = _amounts(_first_steps(new, LOSSES)).get("inputs", 0.0)
    return early if starts_alike and early < SAME * _amounts(old).get("inputs", 0.0) else None


def _amount_differences(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    now, before = _amounts(new), _amounts(old)
    shares = {"updates": FEW, "inputs": SAME, "batches": SAME, "frozen": SAME}  # must remain; else all
    early = _inputs_without_padding(old, new)
    if early is not None:  # later inputs must not be smaller than these
        before["inputs"] = early
        shares["inputs"] = SAME * FEW
    for name, words in _TABLES["less"].items():
        if name in now and name in before and now[name] < shares.get(name, 1.0) * before[name]:
            yield Difference(name, words.format(now[name], before[name]))


def _optimizer_differences(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    if sorted(old.optimizers) != sorted(new.optimizers):
        names = [" and ".join(side.optimizers) or "none of torch" for side in (new, old)]
        yield Difference("optimizer", f"the optimizer is {names[0]}, not {names[1]}")
    if old.moved.keys() != new.moved.keys():  # it is another model, or is called part by part
        return
    total = [math.hypot(*side.moved.values()) or 1.0 for side in (old, new)]
    moved = []
    for name in sorted(old.moved):
        before, now = old.moved[name], new.moved[name]
        counts = max(before / total[0], now / total[1]) ** 2 >= LIMIT.of_all
        if counts and not 1 / LIMIT.further <= now / max(before, 1e-30) <= LIMIT.further:
            moved.append(name + (f" {now / before:.3g} times as far" if before else ", which had not moved"))
    if moved:
        yield Difference("moved", f"{MOVES_AFTER} steps move {', '.join(moved)}")


def is_kept(number: int) -> bool:
    """Whether the facts of a step are kept. The number decides, so that two scripts keep the same steps."""
    every = 1 << (number // LIMIT.full).bit_length()
    return bool(number // LIMIT.together % every == 0)


def _first_steps(side: Behaviour, count: int) -> Behaviour:
    kept = sum(map(is_kept, range(count)))
    first: dict[str, Any] = {name: getattr(side, name)[:kept] for name in PER_STEP}
    return msgspec.structs.replace(side, **first)


def differences(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    """Where the new script does less than the old one in the same number of steps.

    Faster ways to do the same work do not count: workers, memory formats, compilation, autocast, fewer waits.
    """
    count = min(old.steps, new.steps)
    first_old, first_new = _first_steps(old, count), _first_steps(new, count)
    yield from _step_differences([first_old, first_new])
    yield from _amount_differences(first_old, first_new)
    yield from _optimizer_differences(old, new)
    # With smaller batches, a script completes fewer epochs in the same number of steps.
    part = min(1.0, sum(first_new.loaded) / max(1, sum(first_old.loaded)))
    for name in OUTSIDE:
        now, before = new.times(name, count), old.times(name, count)
        expected = int(before * part)
        if now < expected - 1 or (expected and not now):  # the next one may follow at once
            yield Difference(name, f"{now} {name} in the first {count} steps, not {before}")
    if replaced := [f"{name} is replaced" for name in new.replaced if name not in old.replaced]:
        yield Difference("timing", "; ".join(replaced))
