"""What both searches do: measure recipes beside the baseline, as long as there is time."""

import time
from collections.abc import Sequence

from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.studies import rungs
from perfkit.studies.sources import Source, StopRule

TOGETHER = 4
"""Recipes that are measured in the same rounds, beside the baseline."""


def measure(
    source: Source, base: Recipe, recipes: Sequence[Recipe], rule: StopRule, until: float
) -> list[Run]:
    """The runs that succeeded, the baseline's among them, which grows from call to call.

    The first recipes are measured in any case, the others until `time.monotonic()` is `until`.
    """
    runs: dict[str, Run] = {}
    starts = range(0, len(recipes), TOGETHER)
    for number, at in enumerate(starts):
        if source.stopped or (number and time.monotonic() > until):
            break
        titled = [("baseline", base)]
        titled += [(recipe.describe(base)[:120], recipe) for recipe in recipes[at : at + TOGETHER]]
        with source.progress.part(number, len(starts)):
            for run in source.measure(rungs.recipe_stages(titled, source.target), rule):
                source.progress.finish(run)
                if run.status == "ok":
                    runs[run.id] = run
    return list(runs.values())
