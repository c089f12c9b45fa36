"""Pipelines of transforms that work on large images, and shrink them only then."""

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import torch

from perfkit.additions.scripts.messages import LateShrink, limits
from perfkit.additions.shared.clock import own_time

LIMIT = limits("transforms")


class Transform:
    """Calls a transform of a pipeline, and adds up its time, and the pixels before and after it."""

    def __init__(self, plain: Any) -> None:
        self.plain = plain
        self.seconds = 0.0
        self.before = self.after = 0  # pixels

    def __call__(self, *samples: Any, **options: Any) -> Any:
        before, start = _pixels(samples), own_time()
        output = self.plain(*samples, **options)
        self.seconds += own_time() - start
        self.before += before
        self.after += _pixels(output)
        return output

    def __getattr__(self, name: str) -> Any:
        return getattr(self.plain, name)


def _pixels(sample: Any) -> int:
    """The pixels of the first image in a sample; 0 if there is none."""
    if isinstance(sample, list | tuple):
        return next(filter(None, map(_pixels, sample)), 0)
    if isinstance(sample, torch.Tensor):
        return math.prod(sample.shape[-2:]) if sample.dim() >= 2 else 0
    if isinstance(sample, numpy.ndarray):  # its channels come last
        return math.prod(sample.shape[:2]) if sample.ndim >= 2 else 0
    size = getattr(sample, "size", ())  # of an image of PIL
    return math.prod(size) if isinstance(size, tuple) else 0


@contextlib.contextmanager
def timed(members: Iterable[Any]) -> Iterator[list[list[Transform]]]:
    """Has the transforms of each pipeline among the members of a data set timed meanwhile."""
    pipelines = {id(member): member for member in members if _is_pipeline(member)}.values()
    plain = [member.transforms for member in pipelines]
    transforms = [[Transform(transform) for transform in of_pipeline] for of_pipeline in plain]
    for pipeline, of_pipeline in zip(pipelines, transforms, strict=True):
        pipeline.transforms = of_pipeline
    try:
        yield transforms
    finally:
        for pipeline, of_pipeline in zip(pipelines, plain, strict=True):
            pipeline.transforms = of_pipeline


def _is_pipeline(member: Any) -> bool:
    """Whether it is a `Compose`, of either version of torchvision's transforms."""
    classes = [each for each in type(member).__mro__ if each.__name__ == "Compose"]
    return any(each.__module__.startswith("torchvision.") for each in classes)


def late_shrink(pipelines: Iterable[list[Transform]], seconds: float) -> LateShrink | None:
    """The transforms that would take most of `seconds` less, if a later one shrank the images before them."""
    found = [found for pipeline in pipelines if (found := _late_shrink(pipeline, seconds))]
    return max(found, key=lambda late: late.part, default=None)


def _late_shrink(pipeline: list[Transform], seconds: float) -> LateShrink | None:
    shrinking = [at for at, each in enumerate(pipeline) if 0 < each.after * LIMIT.shrinks <= each.before]
    if not shrinking:
        return None
    last = shrinking[-1]
    after = pipeline[last].after
    saved_s = {
        type(transform.plain).__name__: transform.seconds * (1 - after / transform.before)
        for transform in pipeline[:last]
        if transform.before > after
    }
    dearest = sorted(saved_s, key=saved_s.__getitem__, reverse=True)
    names = [name for name in dearest if saved_s[name] >= LIMIT.least * seconds]
    if not names:
        return None
    return LateShrink(
        names=names,
        by=type(pipeline[last].plain).__name__,
        times=pipeline[last].before / after,
        part=sum(saved_s.values()) / max(seconds, 1e-9),
    )
