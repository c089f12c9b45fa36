"""What is to be measured: workload, preset, device, stages or recipes; checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfkit import machine, workloads
from perfkit.errors import InvalidValue
from perfkit.ladder import presets
from perfkit.ladder.catalogue import LADDER, optimization
from perfkit.ladder.presets import Preset
from perfkit.process.ranks import Nodes
from perfkit.program import export
from perfkit.program.recipe import Recipe, Value
from perfkit.program.rules import Target
from perfkit.program.script import REFERENCE
from perfkit.results.run import Run
from perfkit.worker.messages import Describe, Description

DEFAULT_WORKLOAD = {"quick": "photos"}
"""On a CPU the article's ResNet-18 is bound by computing; there, `photos` has a loader that matters."""


@dataclass(frozen=True)
class Progress:
    """What an experiment is doing now."""

    stage: str
    phase: str
    fraction: float
    """Of the whole experiment, 0 to 1."""
    run: Run | None = None
    """A stage that has just ended, whatever its end."""


@dataclass(frozen=True)
class Plan:
    """What is to be measured: checked, but nothing started yet."""

    workload: str
    preset: Preset
    device: str
    stages: tuple[str, ...]
    settings: Mapping[str, Value] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    recipes: Sequence[tuple[str, Recipe]] = ()
    """Titles and recipes to compare instead of stages; the first is what the others are compared with.

    A list may grow while it is measured: what comes next may depend on what was found."""
    only_first: bool = False
    """Each in turn with the first alone, not also with the one before it, of which nothing is asked."""
    files: tuple[str, ...] = ()
    """The exported scripts that those titles are of, where it is scripts that are compared."""
    changes: Mapping[str, Value] = field(default_factory=dict)
    """Switches of the stages above the first, over the ladder's own numbers."""
    below: bool = False
    """Start not from the plain loop but from the default ladder as it stands below the first stage."""
    seed: int = 0
    timeout_s: float | None = None
    """For one stage."""
    precision: float | None = None
    """Go on beyond the preset's rounds until half the interval's width / ratio is at most this …"""
    budget_s: float = 0.0
    """… or this many seconds of rounds are spent."""
    rates_only: bool = False
    """Only the rates of recipes in turn: hardly a round alone, no ceiling. For another pair of processes."""
    nodes: Nodes = field(default_factory=Nodes)
    """The machines that train together."""

    def loads(self) -> Describe:
        """The command to load the workload."""
        return Describe(
            workload=self.workload, preset=self.preset.name, options=dict(self.options), device=self.device
        )


def plan(
    workload: str | None = None,
    preset: str | None = None,
    stages: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    below: bool = False,
    seed: int = 0,
    timeout_s: float | None = None,
) -> Plan:
    """A checked plan; what is left out gets this machine's defaults.

    Args:
        workload: a built-in one, or `package.module:name`.
        preset: `smoke`, `quick` or `paper`.
        stages: optimizations in their order; the whole ladder if None. The baseline always comes first.
        settings: switches set from the baseline up.
        device: `cuda`, `mps` or `cpu`.
        options: the workload's constructor arguments, over those of the preset.
        below: start from the default ladder as it stands below the first stage, not from the plain loop.
        seed: of weights, order and augmentation.
        timeout_s: for one stage.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """
    where = machine.check_device(device)
    size = presets.preset(preset, where.split(":")[0])
    names = tuple(stages) if stages is not None else LADDER
    for name in names:
        optimization(name)
    checked = {
        name: getattr(Recipe().replace(**{name: value}), name) for name, value in (settings or {}).items()
    }
    chosen = workload or DEFAULT_WORKLOAD.get(size.name, "cifar_resnet18")
    workloads.reference(chosen)
    return Plan(
        chosen,
        size,
        where,
        names,
        settings=checked,
        options=dict(options or {}),
        below=below,
        seed=seed,
        timeout_s=timeout_s,
    )


def spread(plan: Plan, nodes: int, index: int, rendezvous: str) -> Plan:
    """The plan for one of several machines that train together.

    Raises:
        InvalidValue: numbers that do not fit together, or no place to meet.
    """
    if nodes == 1:
        return plan
    host, _, port = rendezvous.rpartition(":")
    if not (host and port.isdigit() and 0 < int(port) < 65536):
        raise InvalidValue(
            f"--rendezvous was given '{rendezvous}'", "With --nodes, name HOST:PORT of machine 0"
        )
    ranks = int(plan.settings.get("ranks", 1))
    if index >= nodes or ranks % nodes:
        raise InvalidValue(
            f"{ranks} ranks on {nodes} machines, of which this is number {index}",
            "Give --ranks a multiple of --nodes, and --node-rank from 0 to below --nodes",
        )
    return replace(plan, nodes=Nodes(nodes, index, rendezvous))


def target(plan: Plan, described: Description) -> Target:
    """Where a plan's stages are to run, from what the workload and the device say of themselves."""
    kind = plan.device.split(":")[0]
    return Target(
        device=kind,
        offers=frozenset(described.offers),
        convolves=described.convolves,
        bf16=described.facts.bf16 is not False,
        compiler=machine.has_compiler(kind),
        count=described.facts.count or 1,
        nodes=plan.nodes.count,
    )


def script(recipe: Recipe, described: Description, device: str, seed: int = 0, steps: int = 8) -> str:
    """The standalone script of a recipe for a described workload."""
    return export.script(recipe, described.reference, described.options, device, seed, steps)


def recipe_diff(plan: Plan, described: Description, before: Recipe, after: Recipe, name: str) -> str:
    """What changes in the script from one recipe to another, called `name`."""
    texts = [script(recipe, described, plan.device, plan.seed) for recipe in (before, after)]
    return export.diff(texts[0], texts[1], (f"train.py before {name}", f"train.py with {name}"))


def scripts(runs: Sequence[Run]) -> dict[str, str]:
    """The script of each stage that was measured, by its title."""
    return {
        run.title: export.script(
            Recipe.from_dict(run.recipe), run.workload, run.options, run.device, run.seed, len(run.losses)
        )
        for run in runs
        if run.status == "ok" and run.workload != REFERENCE
    }
