"""How long the chapters take on this machine: by a short probe, and by the time that the preset allows."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Unpack

from perfkit.ladder.presets import Preset
from perfkit.recipe import Recipe
from perfkit.results import stats
from perfkit.studies.engine import has_verdicts
from perfkit.studies.plan import Plan, Watch
from perfkit.studies.setup import prepare
from perfkit.worker.messages import MeasureBlock


@dataclass(frozen=True)
class Chapter:
    """What a chapter measures when it is run from top to bottom, without its exercise."""

    name: str
    ladders: tuple[int, ...] = ()
    """For each of its panels, the recipes that are measured together."""
    other_min: float = 0.0
    """Minutes of its other work: profiles, compiling, a search with a budget of its own."""


CHAPTERS = (
    Chapter("01 baseline", (1,)), Chapter("02 data loading", (2,), 0.5), Chapter("03 pinning", (2,), 0.5),
    Chapter("04 batch size", (2,), 0.5), Chapter("05 uint8 copy", (2, 3, 2), 1), Chapter("06 AMP", (2,), 0.5),
    Chapter("07 compile", (2,), 1), Chapter("08 the whole ladder", (10,)),
    Chapter("09 reading a profile", (), 1), Chapter("10 the workbench", (2,)),
    Chapter("11 your own", (2,), 0.5), Chapter("12 what each is worth", (), 4),
    Chapter("13 what if", (3,), 3),
    Chapter("14 hidden transfers", (), 1.5), Chapter("15 kernels and shapes", (7,), 2),
    Chapter("16 NVTX and Nsight", (2,), 1), Chapter("17 distributed", (6,), 1), Chapter("18 memory", (2,), 1),
    Chapter("20 profiling by hand", (), 0.5),
)  # fmt: skip
"""The chapters that measure."""


@dataclass(frozen=True)
class Probe:
    """The plain loop on this machine."""

    start_s: float
    """From a new process to a training that is warm."""
    block_s: float
    """One measured block."""


def probe(plan: Plan, **watch: Unpack[Watch]) -> Probe:
    """Starts the plain loop, and measures one block of it.

    Raises:
        PerfkitError: the training failed.
    """
    with prepare(plan, **watch) as setup:
        began, preset = time.monotonic(), plan.preset
        recipe = Recipe(batch_size=preset.batch_size)
        child, _ = setup.train(recipe, preset.loss_steps, preset.warmup_s)
        warm = time.monotonic()
        child.ask(MeasureBlock(preset.block_samples, preset.block_s, queues=preset.queues))
        return Probe(warm - began, time.monotonic() - warm)


def minutes(chapter: Chapter, one: Probe, preset: Preset) -> tuple[int, int]:
    """The least and the most that a chapter should take, in whole minutes.

    The least: each panel is sure as early as it may be, soonest where there is one, large effect. The most:
    each panel uses all of its time. Recipes are taken to be as fast as the plain loop.
    """
    least = most = 60 * chapter.other_min
    for recipes in chapter.ladders:
        again = recipes > 1 and has_verdicts(preset)
        started, round_s = (recipes + again) * one.start_s, (recipes + again) * one.block_s
        needed = started + 2 * preset.rounds * round_s  # a block, and its ceiling
        ends = max(needed, min(started + recipes * preset.budget_s, preset.limit_s)) if again else needed
        rounds = preset.rounds if recipes <= 2 else max(preset.rounds, stats.ENDING_ROUNDS)
        least += min(ends, started + (rounds + preset.rounds) * round_s)
        most += ends
    return math.ceil(least / 60), math.ceil(most / 60)
