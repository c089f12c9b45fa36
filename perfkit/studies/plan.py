"""What is to be measured: workload, preset, device, stages or recipes, checked before anything starts."""

from collections.abc import Mapping, Sequence
from typing import Any

from perfkit.ladder.catalogue import optimization
from perfkit.recipe import Recipe
from perfkit.studies.sources import Plan, source_of


def plan(  # noqa: PLR0913, PLR0917 - the options of every measuring command
    workload: str | None = None,
    preset: str | None = None,
    stages: Sequence[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    below: bool = False,
    seed: int = 0,
    timeout_s: float | None = None,
    host: str | None = None,
    keep: Sequence[str] = (),
    keep_all: bool = False,
) -> Plan:
    """A checked plan, with this machine's defaults for what is left out.

    Args:
        workload: a built-in one, or `package.module:name`.
        preset: `smoke`, `quick` or `paper`.
        stages: optimizations in their order; the whole ladder if None. The baseline always comes first.
        settings: switches set from the baseline up.
        device: `cuda`, `mps` or `cpu`; `sim:v100` predicts what a GPU would do; `recorded:NAME` plays a
            recording, and measures nothing.
        options: the workload's constructor arguments, over those of the preset.
        below: start from the default ladder as it stands below the first stage, not from the plain loop.
        seed: of weights, order and augmentation.
        timeout_s: time limit for the start of a stage, and for each of its blocks.
        host: the host of a simulated GPU.
        keep: stages that are kept even if they are not faster.
        keep_all: keep every stage.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """
    checked = {
        name: getattr(Recipe().replace(**{name: value}), name) for name, value in (settings or {}).items()
    }
    for name in keep:
        optimization(name)
    return source_of(device).checked(
        device,
        workload,
        preset,
        stages,
        host,
        settings=checked,
        options=dict(options or {}),
        below=below,
        seed=seed,
        timeout_s=timeout_s,
        keep=tuple(keep),
        keep_all=keep_all,
    )
