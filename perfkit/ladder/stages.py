"""Stages: a ladder's optimizations as recipes for a machine, each on top of the one before."""

from collections.abc import Mapping
from dataclasses import dataclass

from perfkit.ladder.catalogue import LADDER, Optimization
from perfkit.ladder.presets import Sizing
from perfkit.recipe import Recipe
from perfkit.rules import Target, applicable, joined

KEPT = "kept"
"""The name of the row that ends a ladder: everything that was kept, measured afresh."""


@dataclass(frozen=True)
class Stage:
    """One rung: the recipe so far plus one optimization."""

    name: str
    title: str
    recipe: Recipe
    reason: str = ""
    """Why it cannot be measured on this machine; empty where it can."""
    not_applied: Mapping[str, str] | None = None
    """Switches of this stage that cannot act here, with the reason, where others of it can."""


def below(name: str) -> tuple[str, ...]:
    """The rungs of the default ladder below an optimization; all of them for one that is not part of it."""
    return LADDER[1 : LADDER.index(name)] if name in LADDER else LADDER[1:]


def stage(rung: Optimization, before: Recipe, sizes: Sizing, target: Target) -> Stage:
    """One rung on top of a recipe: what it changes on this machine, or why it cannot."""
    recipe = before.replace(**rung.changes(sizes))
    changed = recipe.diff(before)
    acting, reasons = applicable(recipe, target)
    refused = {name: why for name, why in reasons.items() if name in changed}
    if rung.switch in refused or (changed and len(refused) == len(changed)):
        return Stage(rung.name, rung.title, before, reason=joined(refused))
    if not changed:
        return Stage(rung.name, rung.title, before, reason="nothing to change: the recipe has it already")
    return Stage(rung.name, rung.title, acting, not_applied=refused)
