"""Plans: what a user asks for, checked and completed by the source of runs that its device names."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from perfkit import lookup, registry
from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import optimization
from perfkit.recipe import Recipe
from perfkit.studies.here import ThisMachine
from perfkit.studies.sources import Plan, Request, Source, names_of


class Where(TypedDict, total=False):
    """What panels and looks at a workload take by name, with the meaning and the defaults of `plan`."""

    preset: str | None
    settings: Mapping[str, Any] | None
    device: str | None  # the session's choice if None
    options: Mapping[str, Any] | None
    host: str | None
    seed: int


def plan(
    workload: str | None = None,
    preset: str | None = None,
    stages: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    host: str | None = None,
    seed: int = 0,
) -> Plan:
    """A checked plan, with this machine's defaults for what is left out.

    Args:
        workload: a built-in one, or `package.module:name`.
        preset: `smoke`, `quick` or `paper`.
        stages: optimizations in their order; the whole ladder if None. The baseline always comes first.
        settings: switches set in every stage, the baseline included.
        device: `cuda`, `mps` or `cpu`; `sim:v100` predicts what a GPU would do; `recorded:NAME` plays a
            recording, and measures nothing.
        options: the workload's constructor arguments, over those of the preset.
        host: the host of a simulated GPU.
        seed: that of the weights, the order of the data, and their augmentation.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """
    recipe = Recipe().replace(**(settings or {}))
    names = None if stages is None else names_of(stages)
    if names == ():
        raise InvalidValue("no stage was given", "Name one or more, or leave stages out for the whole ladder")
    for name in names or ():
        optimization(name)
    request = Request(workload, preset, names, device, dict(options or {}), host)
    prefix, separator, _ = (device or "").partition(":")
    reference = registry.table("SOURCES").get(prefix) if separator else None
    source: type[Source] = lookup.load(reference) if reference else ThisMachine
    plan = source.checked(request)
    if not plan.recorded:
        plan = replace(plan, subject=replace(plan.subject, seed=seed))
    elif seed:
        raise InvalidValue(f"'{plan.recorded}' was recorded with its own seed", "Leave out --seed")
    return plan.trying(
        stages=tuple(name for name in plan.ladder.stages if name != "baseline"),
        settings={name: getattr(recipe, name) for name in settings or {}},
    )
