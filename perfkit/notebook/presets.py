"""Recipes that a button sets: the fastest that was measured, and what the predictions suggest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.results.store import Entry
from perfkit.search import predict

Timed = TypeVar("Timed", Run, Entry)


def fastest(runs: Iterable[Timed]) -> Timed | None:
    """The run with the highest rate; None where nothing was measured."""
    rates = [(rate.value, run) for run in runs if run.status == "ok" and (rate := run.samples_per_s)]
    return max(rates, key=lambda pair: pair[0])[1] if rates else None


def best(runs: Iterable[Timed]) -> Recipe | str:
    """The recipe of the fastest of these runs."""
    first = fastest(runs)
    return Recipe.from_dict(first.recipe) if first else "Nothing was measured here yet: press Run"


def suggested(
    runs: Sequence[Run], names: Iterable[str], acts: Callable[[Recipe], bool]
) -> Recipe | str:  # fmt: skip
    """What the parts that were measured predict to be faster than the fastest of these runs."""
    start = best(runs)
    if isinstance(start, str):
        return start
    free = [name for name in names if name != "batch_size"]  # another one trains differently
    recipe, _ = predict.climb(predict.fit(runs), start, free, acts)
    return recipe if recipe != start else "No other switch is predicted to help, of the parts measured so far"
