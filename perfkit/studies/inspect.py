"""One recipe in a fresh process: memory, kernels and hidden waits of its step, and its parity."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from perfkit.recipe import Recipe
from perfkit.results.parity import Parity
from perfkit.studies import rungs
from perfkit.studies.sources import PARITY_STEPS, Plan, Progress, Source, opened, plan
from perfkit.worker.messages import KernelReport, MemoryReport, SyncReport


@contextlib.contextmanager
def prepared(
    workload: str | None,
    recipe: Recipe | str | None,
    where: Mapping[str, Any],
    progress: Progress | None = None,
    study: str = "a look at its steps",
) -> Iterator[tuple[Source, Recipe]]:
    """A source that has loaded a workload, and a recipe that can act there.

    The recipe is one of switches, or the name of a rung on top of the default ladder below it; the plain loop
    if None. `where`: preset, settings, device, options, seed, host, as for `perfkit.plan`. `study`: as for
    `opened`.
    """
    switches = recipe.to_dict() if isinstance(recipe, Recipe) else {}
    stage = recipe if isinstance(recipe, str) else "baseline"
    more: dict[str, Any] = {**where, "settings": {**switches, **(where.get("settings") or {})}}
    wanted = plan(workload, stages=[stage], below=True, **more)
    with opened(wanted, progress or Progress(), study) as source:
        yield source, rungs.acting(rungs.all_stages(source)[-1]).recipe


def syncs(
    workload: str | None = None,
    recipe: Recipe | str | None = None,
    steps: int = 4,
    **where: Any,
) -> SyncReport:
    """Copies and waits between host and device in a training's steps; arguments as for `prepared`."""
    with prepared(workload, recipe, where, study="a look at syncs") as (source, used):
        return source.look(used, "syncs", SyncReport, steps=steps)


def memory(workload: str | None = None, recipe: Recipe | str | None = None, **where: Any) -> MemoryReport:
    """What holds memory in a training step; arguments as for `prepared`."""
    with prepared(workload, recipe, where) as (source, used):
        return source.look(used, "memory", MemoryReport)


def kernels(workload: str | None = None, recipe: Recipe | str | None = None, **where: Any) -> KernelReport:
    """What the device can do, by shape, and how much of it a training uses; arguments as for `prepared`."""
    with prepared(workload, recipe, where, study="a look at kernels") as (source, used):
        return source.look(used, "kernels", KernelReport)


def parity(
    plan: Plan, title: str, recipe: Recipe, steps: int = PARITY_STEPS, progress: Progress | None = None
) -> Parity:
    """Trains a recipe and the plain program from one seed on the same batches, and compares."""
    with opened(plan, progress or Progress(), "parity") as source:
        return source.parity(title, recipe, steps)
