"""What a training script does in its steps, and where a faster one does something else."""

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import fmean
from typing import ClassVar

import msgspec

SAME = 0.05
"""Means over steps that differ by less are the same: the last batch of an epoch may be smaller."""
FEW = 0.75
"""Counts are fewer below this share: of distinct batches, of steps that change weights or draw numbers."""
SHRUNK = 0.9
"""A step does less than the first ones below this share of what is computed for an input."""
FIRST = 8
"""Steps whose losses are compared: what they compute is what later ones should."""
LATER = 20
"""Steps that the new script takes beyond the old one's, if so many, are looked at too."""
NAMES = (
    "samples", "backward", "updates", "inputs", "model", "frozen", "randomness", "precision", "optimizer",
    "batches", "data", "evaluations", "checkpoints", "timing", "losses",
)  # fmt: skip
"""Of all differences; `losses` are compared elsewhere."""
_PER_STEP = ("loaded", "trained", "values", "backwards", "epoch", "batches", "weight")


class Look(msgspec.Struct, frozen=True):
    """What was computed in one step: the graphs of its losses."""

    step: int
    parameters: int
    """Those that the losses depend on, and that an optimizer updates."""
    values: float
    """Elements of all results in the graphs, for each element of the model's input."""
    draws: bool
    """Whether the model drew random numbers."""


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a script's steps. Lists have one value a step, from the first one on, if not said."""

    NOTED: ClassVar = (
        *_PER_STEP, "lr", "losses", "looks", "evaluations", "evaluated", "checkpoints",
    )  # fmt: skip
    """The lists that grow with the steps."""
    loaded: list[int]
    """Samples that the script fetched."""
    trained: list[int]
    """Samples that entered the model before a backward pass."""
    values: list[int]
    """Elements of the model's first input."""
    backwards: list[int]
    epoch: list[int]
    """Samples that were fetched since the training loader began its epoch."""
    batches: list[float]
    """A checksum of the model's first input."""
    weight: list[float]
    """A checksum of one of the parameters."""
    lr: list[float]
    """The largest of all parameter groups."""
    losses: list[float]
    """Sums over the backward passes of each of the first steps."""
    looks: list[Look]
    """Of the first steps, and of some later ones."""
    evaluations: list[int]
    """Numbers of the steps with an evaluation in them."""
    evaluated: list[int]
    """Samples of each evaluation."""
    checkpoints: list[int]
    """Numbers of the steps with a checkpoint in them."""
    augments: bool
    """Whether the data set draws random numbers."""
    data: int | None
    """Samples of an epoch by the loader's sampler; None if that is not known."""
    parameters: int
    weights: str | None
    """The narrowest number format of the parameters."""
    activations: str | None
    """The narrowest one in which losses were computed."""
    autocast: str | None
    """None where no autocast was entered in training."""
    scaler: bool
    optimizer: dict[str, str]
    """Settings after the first step, such as `lr`, over all parameter groups."""
    replaced: list[str]
    """Functions that measuring relies on and that the script has replaced."""
    asks: list[str]
    """Files of the script whose code looks for perfkit."""


class Difference(msgspec.Struct, frozen=True):
    """One way in which the new script does not do what the old one did."""

    name: str
    evidence: str
    allowed: bool = False
    """Whether it was declared."""


def differences(old: Behaviour, new: Behaviour) -> list[Difference]:
    """Where the new script does less than the old one, or other work, in as many steps of each.

    What only makes the same work faster is no difference: loader workers, memory formats, compilation, an
    autocast, another implementation of the optimizer, fewer waits.
    """
    count = min(len(old.loaded), len(new.loaded))
    later = _part(new, count, len(new.loaded))
    old, new = _part(old, 0, count), _part(new, 0, count)
    found = [*_steps(old, new), *_graphs(old, new)]
    if not found and len(later.loaded) >= LATER and _mean(later.trained) <= _mean(old.trained):
        found = [Difference(one.name, f"after step {count}, {one.evidence}") for one in _steps(old, later)]
    found += [*_model(old, new), *_data(old, new), *_left_out(old, new)]
    replaced = [name for name in new.replaced if name not in old.replaced]
    found += [Difference("timing", f"{name} is replaced") for name in replaced]
    if len(new.asks) > len(old.asks):
        found.append(Difference("timing", f"{', '.join(new.asks)} looks for perfkit, which measures it"))
    return found


def _part(side: Behaviour, start: int, end: int) -> Behaviour:
    lists = {name: getattr(side, name)[start:end] for name in _PER_STEP}
    looks = [look for look in side.looks if start <= look.step < end]
    return msgspec.structs.replace(side, **lists, looks=looks)


def _mean(values: list[int]) -> float:
    return fmean(values) if values else 0.0


def _is_same(new: float, old: float, tolerance: float = SAME) -> bool:
    return abs(new - old) <= tolerance * max(old, new)


def _steps(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    """Samples, backward passes, updates and sizes, on average."""
    trained, before = _mean(new.trained), _mean(old.trained)
    passes, passes_before = _mean(new.backwards), _mean(old.backwards)
    loaded, loaded_before = _mean(new.loaded), _mean(old.loaded)
    if not (trained and before):
        return
    each_pass_is_same = _is_same(trained * passes_before, before * passes, 0.25)
    samples = f"{trained:.4g} samples are trained on in a step, not {before:.4g}"
    updates, updates_before = _changes(new.weight), _changes(old.weight)
    if _is_same(trained, before):
        if loaded > (1 + SAME) * max(loaded_before, trained):
            text = f"{loaded:.4g} samples are loaded for a step, {trained:.4g} trained on"
            yield Difference("backward", text)
        elif updates < FEW * updates_before:
            text = f"{updates:.0%} of the steps change the weights, not {updates_before:.0%}"
            yield Difference("updates", text)
    elif each_pass_is_same and passes > passes_before:
        text = f"an optimizer step follows {passes:.3g} backward passes, not {passes_before:.3g}"
        yield Difference("updates", f"{text}: {samples}")
    elif each_pass_is_same and passes < 1 - SAME:
        text = f"an optimizer step has {passes:.3g} backward passes, not {passes_before:.3g}"
        yield Difference("backward", f"{text}: {samples}")
    else:
        yield Difference("samples", samples)
    size, size_before = (_mean(side.values) / _mean(side.trained) for side in (new, old))
    if size < (1 - SAME) * size_before:
        text = f"an input has {size:.4g} values, not {size_before:.4g}: shorter sequences or smaller images"
        yield Difference("inputs", text)
    distinct, distinct_before = (_distinct(side) for side in (new, old))
    if distinct < FEW * distinct_before:
        yield Difference("batches", f"{distinct:.0%} of the batches are distinct, not {distinct_before:.0%}")


def _distinct(side: Behaviour) -> float:
    inputs = [batch for batch, values in zip(side.batches, side.values, strict=True) if values]
    return len(set(inputs)) / len(inputs)


def _changes(values: list[float]) -> float:
    """The share of the values that differ from the one before."""
    return fmean(a != b for a, b in pairwise(values)) if len(values) > 1 else 0.0


def _graphs(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    """What the losses were computed from, in the steps that were looked at."""
    if not (old.looks and new.looks and new.parameters):
        return
    reached, before = (
        fmean(look.parameters for look in side.looks) / max(1, side.parameters) for side in (new, old)
    )
    shrinks, shrinks_before = _later_part(new.looks), _later_part(old.looks)
    if reached < (1 - SAME) * before:
        yield Difference("frozen", f"training changes {reached:.0%} of the parameters, not {before:.0%}")
    elif shrinks < SHRUNK * shrinks_before:
        text = f"later steps compute {shrinks:.0%} of what the first ones do, not {shrinks_before:.0%}"
        yield Difference("model", text)
    draws, draws_before = (fmean(look.draws for look in side.looks) for side in (new, old))
    if draws < FEW * draws_before:
        text = f"the model draws random numbers in {draws:.0%} of the steps, not {draws_before:.0%}"
        yield Difference("randomness", f"{text}: dropout is off")


def _later_part(looks: list[Look]) -> float:
    """What later steps compute for an input, as a part of what the first ones do."""
    first, later = (
        [look.values for look in looks if (look.step >= FIRST) == is_later] for is_later in (False, True)
    )
    return fmean(later) / fmean(first) if first and later and any(first) else 1.0


def _model(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    if new.parameters != old.parameters:
        text = f"{new.parameters:,} parameters are in models in training mode, not {old.parameters:,}"
        yield Difference("model", text)
    if _is_half(new.weights) and not _is_half(old.weights):
        yield Difference("precision", f"the weights are {new.weights}, not {old.weights}")
    elif _is_half(new.activations) and not _is_half(old.activations) and not new.autocast:
        text = f"it computes in {new.activations}, not {old.activations}, and no autocast says so"
        yield Difference("precision", text)
    elif new.autocast == "float16" != old.autocast and not new.scaler:
        yield Difference("precision", "autocast to float16 without a GradScaler: small gradients vanish")
    other = [
        f"{name} is {new.optimizer[name]}, not {value}"
        for name, value in old.optimizer.items()
        if new.optimizer.get(name, value) != value
    ]
    rates = enumerate(zip(new.lr, old.lr, strict=False), 1)
    apart = [step for step, (rate, before) in rates if not math.isclose(rate, before, rel_tol=0.01)]
    if apart and not other:
        at = apart[0]
        other = [f"lr is {new.lr[at - 1]:.6g} at step {at}, not {old.lr[at - 1]:.6g}"]
    if other:
        yield Difference("optimizer", "; ".join(other))


def _is_half(kind: str | None) -> bool:
    return kind in ("float16", "bfloat16") or "float8" in (kind or "")


def _data(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    far, before = max(new.epoch, default=0), max(old.epoch, default=0)
    if old.data and new.data and new.data < old.data:
        yield Difference("data", f"an epoch has {new.data:,} samples, not {old.data:,}")
    elif far and far + max(new.loaded) < before * _part_trained(old, new):
        yield Difference("data", f"an epoch ends after {far:,} samples; before, it went on to {before:,}")
    if old.augments and not new.augments:
        text = "the data set draws no random numbers any more: augmentation is left out"
        yield Difference("randomness", text)


def _part_trained(old: Behaviour, new: Behaviour) -> float:
    """Samples in as many steps, as a part of what they were; at most 1."""
    return min(1.0, _mean(new.trained) / max(1.0, _mean(old.trained)))


def _left_out(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    """Evaluations and checkpoints, over as many samples of both."""
    count, size, size_before = len(old.loaded), _mean(new.evaluated), _mean(old.evaluated)
    for name in ("evaluations", "checkpoints"):
        seen, before = (sum(step < count for step in getattr(side, name)) for side in (new, old))
        if seen + bool(seen) < int(before * _part_trained(old, new)):  # one may be just beyond
            yield Difference(name, f"{seen} {name} in the first {count} steps, not {before}")
        elif name == "evaluations" and 0 < size < (1 - SAME) * size_before:
            yield Difference(name, f"an evaluation has {size:.4g} samples, not {size_before:.4g}")
