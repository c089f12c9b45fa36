"""What a training script does in its steps, and where a faster one does something else."""

import math
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from statistics import fmean

import msgspec

SAME = 0.95
"""A mean over steps is less below this share of the other one: the last batch of an epoch may be smaller."""
FEW = 0.75
"""The same of counts: distinct batches, steps that change weights."""
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
    """What was seen of a script's steps.

    Lists have one value a step, if not said, from the first one on; the first two count as one.
    """

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
    losses: list[float] = []
    """Sums over the backward passes of each of the first steps."""
    looks: list[Look] = []
    """Of the first steps, and of some later ones."""
    evaluations: list[int] = []
    """Numbers of the steps with an evaluation in them."""
    evaluated: list[int]
    """Samples that a model was evaluated with."""
    checkpoints: list[int] = []
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
    later = _part(new, max(count, len(new.loaded) - count), len(new.loaded))
    old, new = _part(old, 0, count), _part(new, 0, count)
    found = [*_steps(old, new), *_less(old, new), *_other(old, new), *_left_out(old, new)]
    if len(later.loaded) >= LATER and SAME * fmean(later.trained) <= fmean(old.trained):
        known = {"updates", *(one.name for one in found)}  # a falling rate ends in no change
        for one in (*_steps(old, later), *_less(old, later)):
            if one.name not in known:
                found.append(Difference(one.name, f"after step {count}, {one.evidence}"))
    return found


def _part(side: Behaviour, start: int, end: int) -> Behaviour:
    lists = {name: getattr(side, name)[start:end] for name in _PER_STEP}
    looks = [look for look in side.looks if start <= look.step < end]
    return msgspec.structs.replace(side, **lists, looks=looks)


def _steps(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    """Samples and backward passes of a step."""
    (trained, before), (passes, passes_before), (loaded, loaded_before) = (
        (fmean(getattr(new, name)), fmean(getattr(old, name))) for name in ("trained", "backwards", "loaded")
    )
    each_pass_is_same = math.isclose(trained * passes_before, before * passes, rel_tol=0.25)
    samples = f"{trained:.4g} samples are trained on in a step, not {before:.4g}"
    if math.isclose(trained, before, rel_tol=1 - SAME):
        if max(loaded_before, trained) < SAME * loaded:
            text = f"{loaded:.4g} samples are loaded for a step, {trained:.4g} trained on"
            yield Difference("backward", text)
    elif each_pass_is_same and passes > passes_before:
        text = f"an optimizer step follows {passes:.3g} backward passes, not {passes_before:.3g}"
        yield Difference("updates", f"{text}: {samples}")
    elif each_pass_is_same and passes < SAME:
        text = f"an optimizer step has {passes:.3g} backward passes, not {passes_before:.3g}"
        yield Difference("backward", f"{text}: {samples}")
    else:
        yield Difference("samples", samples)


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _distinct(side: Behaviour) -> float | None:
    inputs = [batch for batch, values in zip(side.batches, side.values, strict=True) if values]
    return len(set(inputs)) / len(inputs) if inputs else None


def _shrinks(side: Behaviour) -> float | None:
    first = _mean(look.values for look in side.looks if look.step < FIRST)
    later = _mean(look.values for look in side.looks if look.step >= FIRST)
    return later / first if later is not None and first else None


_LESS: tuple[tuple[str, float, Callable[[Behaviour], float | None], str], ...] = (
    (
        "updates",
        FEW,
        lambda side: _mean(a != b for a, b in pairwise(side.weight)),
        "{:.0%} of the steps change the weights, not {:.0%}",
    ),
    (
        "inputs",
        SAME,
        lambda side: sum(side.values) / sum(side.trained) if any(side.trained) else None,
        "an input has {:.4g} values, not {:.4g}: shorter sequences or smaller images",
    ),
    ("batches", SAME, _distinct, "{:.0%} of the batches are distinct, not {:.0%}"),
    (
        "frozen",
        SAME,
        lambda side: _mean(look.parameters / side.parameters for look in side.looks if side.parameters),
        "training changes {:.0%} of the parameters, not {:.0%}",
    ),
    (
        "model",
        1.0,
        lambda side: side.parameters,
        "{:,} parameters are in models in training mode, not {:,}",
    ),
    ("model", 0.9, _shrinks, "later steps compute {:.0%} of what the first ones do, not {:.0%}"),
    (
        "randomness",
        SAME,
        lambda side: _mean(look.draws for look in side.looks),
        "the model draws random numbers in {:.0%} of the steps, not {:.0%}: dropout is off",
    ),
    (
        "randomness",
        FEW,
        lambda side: float(side.augments),
        "the data set draws no random numbers any more: augmentation is left out",
    ),
    ("data", 1.0, lambda side: side.data, "an epoch has {:,} samples, not {:,}"),
    (
        "evaluations",
        SAME,
        lambda side: _mean(filter(None, side.evaluated)),
        "an evaluation has {:.4g} samples, not {:.4g}",
    ),
)
"""Difference, the share of the old value from which on it is the same, the value, words for new and old."""


def _less(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    for name, share, measure, words in _LESS:
        now, before = measure(new), measure(old)
        if now is not None and before is not None and now < share * before:
            yield Difference(name, words.format(now, before))


def _other(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    """Other number formats, settings or functions."""
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
    other += [
        f"lr is {rate:.6g} at step {step}, not {before:.6g}"
        for step, (rate, before) in enumerate(zip(new.lr, old.lr, strict=False), 1)
        if not math.isclose(rate, before, rel_tol=0.01)
    ][:1]
    if other:
        yield Difference("optimizer", "; ".join(other))
    replaced = [f"{name} is replaced" for name in new.replaced if name not in old.replaced]
    if len(new.asks) > len(old.asks):
        replaced.append(f"{', '.join(new.asks)} looks for perfkit, which measures it")
    if replaced:
        yield Difference("timing", "; ".join(replaced))


def _is_half(kind: str | None) -> bool:
    return kind in ("float16", "bfloat16") or "float8" in (kind or "")


def _left_out(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    """Ends of epochs, evaluations and checkpoints, over as many samples of both."""
    count, part = len(old.loaded), min(1.0, sum(new.trained) / max(1, sum(old.trained)))
    far, before = max(new.epoch, default=0), max(old.epoch, default=0)
    if far and far + max(new.loaded) < before * part:
        yield Difference("data", f"an epoch ends after {far:,} samples; before, it went on to {before:,}")
    for name in ("evaluations", "checkpoints"):
        seen, before = (sum(step < count for step in getattr(side, name)) for side in (new, old))
        if seen + bool(seen) < int(before * part):  # one may be just beyond
            yield Difference(name, f"{seen} {name} in the first {count} steps, not {before}")
