"""Looks inside a step in a notebook."""

from typing import Any

from msgspec.structs import replace

from perfkit.additions.inside import KernelReport, MemoryReport, looks
from perfkit.notebook.shown import Recipes, Shown


def memory(recipes: Recipes, workload: str | None = None, **where: Any) -> Shown[list[MemoryReport]]:
    """What holds memory in a step of each recipe; arguments as for `perfkit.profile`. Figure: held."""
    reports = [
        replace(looks.memory(workload, settings=changes, **where), recipe=title)
        for title, changes in recipes.items()
    ]
    return Shown(reports, looks.memory_sections(reports))


def kernels(workload: str | None = None, recipe: Any = None, **where: Any) -> Shown[KernelReport]:
    """Roofs, shapes, a step's share of them; arguments as for `perfkit.profile`."""
    report = looks.kernels(workload, recipe, **where)
    return Shown(report, looks.kernel_sections(report))
