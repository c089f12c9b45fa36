"""The optimizations, and the sizes at which they are measured.

Each optimization is declared once, in its card `cards/NAME.md`: front matter (TOML), then prose.
"""

import itertools
import math
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec

from perfkit.errors import one_of
from perfkit.machine.cores import usable_cores
from perfkit.recipe import Recipe, Value
from perfkit.results import AGAIN, stats
from perfkit.rules import Target, applicable, joined, why_not

Exactness = Literal["bitwise", "tolerance", "changes training"]
"""Whether losses stay the same, are rounded differently, or change."""


@dataclass(frozen=True)
class Size:
    """The batch sizes of a ladder, named after its preset."""

    name: str
    batch_size: int
    large_batch: int
    largest_batch: int


@dataclass(frozen=True)
class Slice:
    """A slice: the fewest whole steps that have at least `samples` samples and take about `seconds`."""

    samples: int
    seconds: float = 0.0


@dataclass(frozen=True)
class Goal:
    """When a ratio is known well enough, by half the width of its interval / the ratio."""

    precision: float
    part: float = 0.0  # of the effect, if that is larger: five or six times as fast is not worth a wait

    def is_met(self, centre: float, half: float) -> bool:
        """Whether a ratio is known well enough: the mean of its logarithm, and half of its 95% interval."""
        return half <= max(math.log1p(self.precision), self.part * abs(centre))


@dataclass(frozen=True)
class Budget:
    """How many seconds starting and measuring may take."""

    stage_s: float  # for each stage that is compared
    ladder_s: float | None = None  # for a whole ladder; None: no limit but those of its stages
    noisy_ladder_s: float | None = None  # used instead if other programs spoil rounds

    def seconds(self, stages: int) -> float:
        """The seconds that several stages may take together."""
        each_s = self.stage_s * stages
        return each_s if self.ladder_s is None else min(each_s, self.ladder_s)


@dataclass(frozen=True)
class StopRule:
    """How much is measured, and when measuring ends."""

    slice: Slice
    rounds: int  # the fewest rounds
    loss_steps: int
    """The number of first steps whose losses are stored. The exported script has the same losses."""
    warmup_s: float  # warm-up ends once the step time is steady, or after about this long
    budget: Budget | None = None  # None: only these rounds in one incarnation, without a verdict
    goal: Goal | None = Goal(stats.PRECISION, part=0.2)  # None: the whole budget is spent
    cached: int = 5  # slices on a batch that is already on the device

    @property
    def precision(self) -> float:
        """The half width / ratio up to which an interval without an effect means no difference."""
        return self.goal.precision if self.goal else stats.PRECISION

    def within(self, seconds: float) -> "StopRule":
        """This rule with `seconds` for a whole ladder; unchanged if it has no budget."""
        if self.budget is None:
            return self
        return replace(self, budget=Budget(self.budget.stage_s, seconds, seconds))


class Preset(NamedTuple):
    """The meaning of `smoke`, `quick` or `paper`."""

    size: Size
    rule: StopRule


ACCELERATOR_SLICE_S = 0.7  # longer than on a CPU, so that a synchronisation at each end does not show

_PRESETS = (
    Preset(Size("smoke", 8, 16, 16), StopRule(Slice(samples=16), rounds=3, loss_steps=4, warmup_s=0.5)),
    Preset(Size("quick", 32, 64, 64), StopRule(Slice(samples=1, seconds=0.3), rounds=5, loss_steps=4,
                                               warmup_s=3, budget=Budget(60, 345, 560))),
    Preset(Size("paper", 32, 512, 1024), StopRule(Slice(samples=1, seconds=0.3), rounds=5, loss_steps=8,
                                                  warmup_s=10, budget=Budget(60, 570, 900))),
)  # fmt: skip
PRESETS = {preset.size.name: preset for preset in _PRESETS}


def preset(name: str | None = None, device: str = "cpu") -> Preset:
    """A preset by its name, else by `PERFKIT_PRESET`, else `paper` on CUDA and `quick` on other devices."""
    wanted = name or os.environ.get("PERFKIT_PRESET") or ("paper" if device == "cuda" else "quick")
    if wanted not in PRESETS:
        raise one_of(wanted, list(PRESETS), "preset")
    size, rule = PRESETS[wanted]
    if device != "cpu" and rule.slice.seconds:
        rule = replace(rule, slice=replace(rule.slice, seconds=ACCELERATOR_SLICE_S))
    return Preset(size, rule)


MOST_WORKERS = 16
"""The most workers on an accelerator: each lengthens the queue, and with it the blocks. `tune` tries more."""


def sizing(size: Size, target: Target) -> dict[str, Value]:
    """The values of a ladder that depend on machine and size; a card refers to one as `"$NAME"`.

    On an accelerator every usable core may load data. A CPU that trains needs the cores itself, so it gets
    one worker for every two cores, because more would slow the model down, and its threads sleep at barriers.
    """
    on_cpu = target.device == "cpu"
    cores = target.cores or usable_cores()
    workers = max(1, cores // 2 if on_cpu else min(cores, MOST_WORKERS))
    return {
        "workers": workers,
        "batch_size": size.batch_size,
        "large_batch": size.large_batch,
        "amp": "fp16" if why_not("amp", Recipe(amp="bf16"), target) else "bf16",
        "threads": max(1, cores - workers) if on_cpu else 0,
        "wait_policy": "passive" if on_cpu else "default",
    }


class Optimization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One named change of a recipe: the front matter of its card, and the prose below it."""

    name: str
    title: str
    question: str
    settings: Annotated[dict[str, Value], msgspec.Meta(min_length=1)]
    """The switches that it sets. The first is its main one: if that cannot act, the optimization does not
    apply. `"$NAME"` is the value of that name in `sizing`."""
    documentation: Annotated[str, msgspec.Meta(pattern="^https://")]  # the official page about it
    exactness: Exactness
    """Of the change itself: switches that only make it possible, such as `workers`, do not count."""
    published: str = ""  # what the articles report about it
    times: float | None = None  # the article's own speed-up over the stage before it
    prose: str

    @property
    def switch(self) -> str:
        return next(iter(self.settings))

    def changes(self, sizes: Mapping[str, Value]) -> Mapping[str, Value]:
        """The values of its switches: `"$NAME"` is the value of that name."""
        values = {f"${name}": value for name, value in sizes.items()}
        return {name: values.get(str(value), value) for name, value in self.settings.items()}

    def card(self) -> str:
        return f"{self.prose}\n\n[Official documentation]({self.documentation})"


def _read(path: Path) -> Optimization:
    _, front, prose = path.read_text(encoding="utf-8").split("+++\n", 2)
    return msgspec.convert({**tomllib.loads(front), "name": path.stem, "prose": prose.strip()}, Optimization)


GROUPS = (
    ("allocator", "data_loading"),
    ("pinning", "batch_size", "uint8_copy", "device_resize"),
    ("tf32", "channels_last", "scaled_decode"),
    ("amp", "cpu_threads"),
    ("compile",),
)
"""The default ladder: the article's order, with a few more stages, and without its `set_to_none=True`, which
has been torch's default since 2.0.

The stages of a group do not depend on each other, so they are measured in the same rounds. A group ends where
the bottleneck moves: after the workers, the batch, the layout that AMP needs. Compiling starts up slowly."""
LONG_STARTS = ("compile", "max_autotune")  # stages that are expensive to start get the time of two
TOGETHER = {"amp_fewer_threads": ("amp", "cpu_threads")}
"""Stages that combine two others. A group with both of these tries them together, too (studies/climb.py)."""
LADDER = ("baseline", *itertools.chain.from_iterable(GROUPS))


_CARDS = {path.stem: _read(path) for path in sorted((Path(__file__).parent / "cards").glob("*.md"))}
OPTIMIZATIONS = {name: _CARDS[name] for name in LADDER} | _CARDS
"""Every optimization by name: the default ladder first, in its order, then the others."""


def groups(stages: Sequence[str]) -> list[list[str]]:
    """Splits stages, in their order, into lists of neighbours that belong to the same group of `GROUPS`."""
    neighbours: list[list[str]] = []
    for name in stages:
        group = next((group for group in GROUPS if name in group), ())
        if neighbours and neighbours[-1][0] in group and name not in neighbours[-1]:
            neighbours[-1].append(name)
        else:
            neighbours.append([name])
    return neighbours


def optimization(name: str) -> Optimization:
    """An optimization by name."""
    if name not in OPTIMIZATIONS:
        raise one_of(name, list(OPTIMIZATIONS), "stage")
    return OPTIMIZATIONS[name]


def exactness(recipe: Recipe, baseline: Recipe, device: str = "cpu") -> Exactness:
    """The loosest class of the optimizations whose main switch differs from the baseline's.

    Batch size and accumulation are judged together. A different number of samples in a step changes the
    training; a batch that is split differently rounds its gradients differently (and batch normalisation sees
    the parts). A GPU adds in a different order each time, so nothing is bitwise there.
    """
    changed = set(recipe.diff(baseline))
    batch = {"batch_size", "accumulation"}
    classes: list[Exactness] = ["bitwise" if device == "cpu" else "tolerance"]
    classes += [o.exactness for o in OPTIMIZATIONS.values() if o.switch in changed - batch]
    if changed & batch:
        samples = {side.batch_size * side.accumulation for side in (recipe, baseline)}
        classes.append("tolerance" if len(samples) == 1 else "changes training")
    return max(classes, key=get_args(Exactness).index)


SO_FAR = "kept_so_far"  # the first row of a group: all stages kept before it in one training
ALL_KEPT = "kept"  # the last row: everything that was kept, measured in new processes

NOT_STAGES = (AGAIN, SO_FAR, ALL_KEPT)  # the rows of a ladder that are not stages


@dataclass(frozen=True)
class Stage:
    """One optimization on top of what was kept so far."""

    name: str
    title: str
    recipe: Recipe
    reason: str = ""  # why it cannot be measured on this machine; empty if it can
    not_applied: Mapping[str, str] = field(default_factory=dict)
    """Switches of this stage that cannot act here, with the reasons, if its others can."""
    program: Any = None  # what is trained in place of the source's own program, as that source knows it


def below(name: str) -> tuple[str, ...]:
    """The stages below an optimization, or below those it combines, in the default ladder; else all of it."""
    first = TOGETHER[name][0] if name in TOGETHER else name
    return LADDER[1 : LADDER.index(first)] if first in LADDER else LADDER[1:]


def stage(optimization: Optimization, before: Recipe, sizes: Mapping[str, Value], target: Target) -> Stage:
    """An optimization on top of a recipe: what it changes on this machine, or why it cannot."""
    recipe = before.replace(**optimization.changes(sizes))
    changed = recipe.diff(before)
    acting, reasons = applicable(recipe, target)
    refused = {name: why for name, why in reasons.items() if name in changed}
    if not changed:
        reason = "nothing to change: the recipe already has it"
    elif optimization.switch in refused or len(refused) == len(changed):
        reason = joined(refused)
    else:
        return Stage(optimization.name, optimization.title, acting, not_applied=refused)
    return Stage(optimization.name, optimization.title, before, reason)
