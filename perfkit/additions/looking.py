"""What the additions share that look at the steps of one recipe, in a fresh process."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from perfkit.recipe import Recipe
from perfkit.studies import rungs
from perfkit.studies.sources import Progress, Source, opened, plan


@contextlib.contextmanager
def prepared(
    workload: str | None,
    recipe: Recipe | str | None,
    where: Mapping[str, Any],
    progress: Progress | None = None,
    study: str = "a look at its steps",
) -> Iterator[tuple[Source, Recipe]]:
    """A source that has loaded a workload, and a recipe that can act there.

    The recipe is one of switches, or the name of a stage, on top of the default ladder below it. None is the
    plain loop. `where`: preset, settings, device, options, seed, host, as for `perfkit.plan`. `study`: as for
    `opened`.
    """
    switches = recipe.to_dict() if isinstance(recipe, Recipe) else {}
    stage = recipe if isinstance(recipe, str) else "baseline"
    more: dict[str, Any] = {**where, "settings": {**switches, **(where.get("settings") or {})}}
    wanted = plan(workload, stages=[stage], below=True, **more)
    with opened(wanted, progress or Progress(), study) as source:
        yield source, rungs.acting(source).recipe
