"""What a training script does in its steps, and where a faster one does something else."""

from collections.abc import Iterator

import msgspec

SAME = 0.05
"""Means over steps that differ by less are the same: the last batch of an epoch may be smaller."""
NAMES = (
    "samples", "backward", "updates", "inputs", "model", "frozen", "precision", "optimizer", "batches",
    "data", "evaluations", "checkpoints", "timing", "losses",
)  # fmt: skip
"""Of all differences; `losses` are compared elsewhere."""
DISTINCT = 0.75
"""Batches repeat if fewer than this share of the other side's are distinct."""


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen of a script's steps; those on a batch that perfkit held are left out.

    Lists have one value a step, from the first one on.
    """

    loaded: list[int]
    """Samples that the script fetched."""
    trained: list[int]
    """Samples that entered the model before a backward pass."""
    values: list[int]
    """Elements of the model's first input."""
    backwards: list[int]
    batches: list[float]
    """A checksum of each of the first inputs."""
    evaluations: list[int]
    """Numbers of the steps with an evaluation in them."""
    checkpoints: list[int]
    data: int | None
    """Samples of the training data set; None if that is not known."""
    parameters: int
    changed: int
    """Parameters in tensors that the steps have changed."""
    weights: str | None
    """The narrowest number format of the parameters."""
    activations: str | None
    """The narrowest one in which the first losses were computed."""
    autocast: str | None
    """None where no autocast was entered in training."""
    optimizer: dict[str, str]
    """Settings after the first step, such as `lr`, over all parameter groups."""
    replaced: list[str]
    """Functions that measuring relies on and that the script has replaced."""


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
    found = [*_steps(old, new), *_model(old, new), *_data(old, new), *_left_out(old, new)]
    found += [
        Difference("timing", f"{name} is replaced") for name in new.replaced if name not in old.replaced
    ]
    return found


def _mean(values: list[int]) -> float:
    return sum(values) / max(1, len(values))


def _is_same(new: float, old: float, tolerance: float = SAME) -> bool:
    return abs(new - old) <= tolerance * max(old, new)


def _steps(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    """Samples, backward passes and sizes, each over the same number of steps."""
    count = min(len(old.loaded), len(new.loaded))
    trained, trained_before = _mean(new.trained[:count]), _mean(old.trained[:count])
    passes, passes_before = _mean(new.backwards[:count]), _mean(old.backwards[:count])
    loaded, loaded_before = _mean(new.loaded[:count]), _mean(old.loaded[:count])
    if not (trained and trained_before):
        return
    each_pass_is_same = _is_same(trained * passes_before, trained_before * passes, 0.25)
    samples = f"{trained:.4g} samples are trained on in a step, not {trained_before:.4g}"
    if _is_same(trained, trained_before):
        if loaded > (1 + SAME) * max(loaded_before, trained):
            yield Difference(
                "backward", f"{loaded:.4g} samples are loaded for a step, {trained:.4g} trained on"
            )
    elif each_pass_is_same and passes > passes_before:
        text = f"an optimizer step follows {passes:.3g} backward passes, not {passes_before:.3g}"
        yield Difference("updates", f"{text}: {samples}")
    elif each_pass_is_same and passes < 1 - SAME:
        text = f"an optimizer step has {passes:.3g} backward passes, not {passes_before:.3g}"
        yield Difference("backward", f"{text}: {samples}")
    else:
        yield Difference("samples", samples)
    size, size_before = (_mean(side.values[:count]) / _mean(side.trained[:count]) for side in (new, old))
    if size < (1 - SAME) * size_before:
        text = f"an input has {size:.4g} values, not {size_before:.4g}: shorter sequences or smaller images"
        yield Difference("inputs", text)


def _model(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    if new.parameters != old.parameters:
        text = f"{new.parameters:,} parameters are in models in training mode, not {old.parameters:,}"
        yield Difference("model", text)
    if new.changed * old.parameters < old.changed * new.parameters * (1 - SAME):
        text = f"training changes {new.changed:,} of {new.parameters:,} parameters"
        yield Difference("frozen", f"{text}; before, {old.changed:,} of {old.parameters:,}")
    if _is_half(new.weights) and not _is_half(old.weights):
        yield Difference("precision", f"the weights are {new.weights}, not {old.weights}")
    elif _is_half(new.activations) and not _is_half(old.activations) and not new.autocast:
        text = f"it computes in {new.activations}, not {old.activations}, and no autocast says so"
        yield Difference("precision", text)
    other = {
        name: f"{name} is {new.optimizer[name]}, not {value}"
        for name, value in old.optimizer.items()
        if new.optimizer.get(name, value) != value
    }
    if other:
        yield Difference("optimizer", "; ".join(other.values()))


def _is_half(kind: str | None) -> bool:
    return kind in ("float16", "bfloat16") or "float8" in (kind or "")


def _data(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    count = min(len(old.batches), len(new.batches))
    distinct, before = len(set(new.batches[:count])), len(set(old.batches[:count]))
    if distinct < DISTINCT * before:
        yield Difference("batches", f"the first {count} batches hold {distinct} different ones, not {before}")
    if old.data and new.data and new.data < old.data:
        yield Difference("data", f"the data set has {new.data:,} samples, not {old.data:,}")


def _left_out(old: Behaviour, new: Behaviour) -> Iterator[Difference]:
    """Evaluations and checkpoints, over as many samples of both."""
    count = min(len(old.loaded), len(new.loaded))
    part = min(1.0, _mean(new.trained[:count]) / max(1.0, _mean(old.trained[:count])))
    for name in ("evaluations", "checkpoints"):
        seen, before = (sum(step < count for step in getattr(side, name)) for side in (new, old))
        if seen < int(before * part) / 2:
            yield Difference(name, f"{seen} {name} in the first {count} steps, not {before}")
