"""Runs the search in a notebook."""

from collections.abc import Mapping, Sequence
from typing import Unpack

from perfkit.additions.search import tune as tuning
from perfkit.additions.search.tune import Tuned
from perfkit.notebook.shown import Shown, with_line
from perfkit.recipe import Value
from perfkit.results.store import warning_store
from perfkit.studies import planning


def tune(
    space: Mapping[str, Sequence[Value]] | None = None,
    minutes: float = 10.0,
    memory_gb: float | None = None,
    workload: str | None = None,
    **where: Unpack[planning.Where],
) -> Shown[Tuned]:
    """Finds the fastest recipe of a space; the stop button ends it, and keeps what is measured. Table: Tried.

    The space has values by switch (the usual ones if None). Recipes above `memory_gb` are not picked.
    Further arguments are those of the panels.
    """
    plan = planning.plan(workload, stages=["baseline"], **where)
    cap = int(memory_gb * 1e9) if memory_gb else None
    with warning_store() as store:
        best = with_line(lambda progress: tuning.tune(plan, space, cap, 60 * minutes, progress, store))
    return Shown(best, best.sections())
