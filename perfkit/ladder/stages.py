"""The optimizations, their order, and the presets: what is changed, one rung at a time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfkit.errors import one_of
from perfkit.ladder.catalogue import OPTIMIZATIONS, Exactness, Optimization, Sizing
from perfkit.program.recipe import Recipe
from perfkit.program.rules import Target, applicable
from perfkit.results import former

__all__ = ["OPTIMIZATIONS", "Exactness", "Optimization", "Sizing"]


@dataclass(frozen=True)
class Preset:
    """How much is measured, and at which size."""

    name: str
    batch_size: int
    large_batch: int
    largest_batch: int
    block_samples: int
    """Samples in one measured block; every stage measures the same number."""
    rounds: int
    loss_steps: int
    """First steps of every run; their losses are kept and are those of the exported script."""
    warmup_s: float
    """Warm-up goes on until the step time is steady, at most about this long."""
    queues: int = 2
    """A block takes at least so many times the batches that the loader's queue holds, or the queue's state at
    both ends would be what is measured."""


PRESETS = {
    "smoke": Preset("smoke", 8, 16, 16, block_samples=16, rounds=3, loss_steps=4, warmup_s=0.5, queues=1),
    "quick": Preset("quick", 32, 64, 64, block_samples=128, rounds=5, loss_steps=4, warmup_s=4),
    "paper": Preset("paper", 32, 512, 1024, block_samples=10_240, rounds=7, loss_steps=8, warmup_s=20),
}


def preset(name: str | None = None, device: str = "cpu") -> Preset:
    """A preset by name, else by `PERFKIT_PRESET`, else by what the device can bear.

    Raises:
        InvalidValue: no such preset.
    """
    wanted = name or os.environ.get("PERFKIT_PRESET") or ("quick" if device == "cpu" else "paper")
    if wanted not in PRESETS:
        raise one_of(wanted, list(PRESETS), "preset")
    return PRESETS[wanted]


def sizing(preset: Preset, target: Target, cores: int) -> Sizing:
    """Sizes for a machine.

    On an accelerator every usable core may load data. On the CPU the model needs the cores itself: one worker
    for every two cores, as more workers than cores are slower than fewer.
    """
    workers = max(1, cores // 2) if target.device == "cpu" else max(1, cores)
    amp = "bf16" if target.bf16 else "fp16"
    threads = max(1, cores - workers) if target.device == "cpu" else cores
    return Sizing(workers, preset.batch_size, preset.large_batch, preset.largest_batch, amp, threads)


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


def exactness(recipe: Recipe) -> Exactness:
    """The loosest class among the optimizations whose own switch a recipe has changed."""
    order: list[Exactness] = ["bitwise", "tolerance", "changes training"]
    sizes, changed = Sizing(1, 32, 64, 64, "bf16", 1), recipe.diff(Recipe())
    found = [o.exactness for o in OPTIMIZATIONS.values() if next(iter(o.changes(sizes)), "") in changed]
    return max(found, key=order.index, default="bitwise")


LADDER = tuple(list(OPTIMIZATIONS)[:10])
"""The default ladder: the article's order, with what lies beyond it."""


def optimization(name: str) -> Optimization:
    """An optimization by name.

    Raises:
        InvalidValue: no such optimization.
    """
    if former.stage(name) not in OPTIMIZATIONS:
        raise one_of(name, list(OPTIMIZATIONS), "stage")
    return OPTIMIZATIONS[former.stage(name)]


def rungs(names: Sequence[str]) -> list[Optimization]:
    """The optimizations of a ladder in their order, the baseline first.

    Raises:
        InvalidValue: an unknown optimization.
    """
    return [OPTIMIZATIONS["baseline"], *(optimization(name) for name in names if name != "baseline")]


def below(name: str) -> tuple[str, ...]:
    """The rungs of the default ladder under an optimization; all of them for one that is not in it."""
    return LADDER[1 : LADDER.index(name)] if name in LADDER[1:] else LADDER[1:] if name not in LADDER else ()


def stage(rung: Optimization, before: Recipe, sizes: Sizing, target: Target) -> Stage:
    """One rung on top of a recipe: what it changes on this machine, or why it cannot."""
    changes = {} if rung.name == "baseline" else dict(rung.changes(sizes))
    return _stage(rung, before, before.replace(**changes), target, about=next(iter(changes), ""))


def build(names: Sequence[str], sizes: Sizing, target: Target) -> list[Stage]:
    """The stages of a ladder for a machine, each on top of those before it that can act there.

    Raises:
        InvalidValue: an unknown optimization.
    """
    recipe = Recipe().replace(**dict(OPTIMIZATIONS["baseline"].changes(sizes)))
    stages = []
    for rung in rungs(names):
        stages.append(stage(rung, recipe, sizes, target))
        recipe = stages[-1].recipe
    return stages


def _stage(rung: Optimization, before: Recipe, after: Recipe, target: Target, about: str) -> Stage:
    changed = after.diff(before)
    acting, refused = applicable(after, target)
    refused = {name: why for name, why in refused.items() if name in changed}
    if about in refused or (changed and len(refused) == len(changed)):
        return Stage(rung.name, rung.title, before, reason="; ".join(dict.fromkeys(refused.values())))
    if not changed and rung.name != "baseline":
        return Stage(rung.name, rung.title, before, reason="nothing to change: the recipe has it already")
    return Stage(rung.name, rung.title, acting, not_applied=refused)
