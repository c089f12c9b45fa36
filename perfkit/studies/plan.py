"""What is to be measured: workload, preset, device, stages or recipes, checked before anything starts."""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypedDict

from perfkit import machine, workloads
from perfkit.errors import InvalidValue
from perfkit.ladder import presets
from perfkit.ladder.catalogue import LADDER, optimization
from perfkit.ladder.presets import Preset
from perfkit.ladder.stages import AGAIN
from perfkit.recipe import Recipe, Value
from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.rules import Target
from perfkit.scripts.launch import Launch
from perfkit.simulate import article
from perfkit.simulate import host as hosts
from perfkit.simulate.gpus import Gpu, gpu_of
from perfkit.simulate.host import Host
from perfkit.worker.messages import Description

DEFAULT_WORKLOAD = {"smoke": "photos", "quick": "photos"}
"""On a CPU the article's ResNet-18 is compute-bound; with `photos` the loader matters there too."""


@dataclass(frozen=True)
class Pace:
    """How fast the training that is under way is just now, and what else the machine does."""

    title: str
    """Of the trial."""
    step_s: float
    samples_per_step: int
    others: float | None = None
    """Share of the cores that other programs took during the last block (0 to 1)."""
    gpu: float | None = None
    """The GPU's utilisation by NVML (0 to 1)."""


@dataclass(frozen=True)
class Progress:
    """What a study is doing now."""

    stage: str
    phase: str
    fraction: float
    """Of the whole study, 0 to 1."""
    run: Run | None = None
    """The run that has just ended, whatever its status."""
    pace: Pace | None = None
    """The newest steps, where some have ended since."""

    def describe(self) -> str:
        """One line for people; before the first stage there is only the phase."""
        return f"{self.stage}: {self.phase}".removeprefix(": ")


class Watch(TypedDict, total=False):
    """How a study is followed and stopped; both may be left out."""

    on_progress: Callable[[Progress], None]
    """Called often, from the thread that started the study."""
    cancelled: threading.Event | None
    """Set it from any thread to stop; what was measured is kept."""


@dataclass(frozen=True)
class Plan:
    """What is to be measured: checked, but nothing started yet."""

    workload: str
    preset: Preset
    device: str
    stages: tuple[str, ...]
    settings: Mapping[str, Value] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    recipes: tuple[tuple[str, Recipe], ...] = ()
    """Titles and recipes to measure instead of stages; the first is the baseline of the others."""
    changes: Mapping[str, Value] = field(default_factory=dict)
    """Switches of the stages above the first, in place of the ladder's own values."""
    below: bool = False
    """Start not from the plain loop but from the default ladder as it stands below the first stage."""
    seed: int = 0
    timeout_s: float | None = None
    """For one stage."""
    recorded: str = ""
    """The recording that is played in place of measuring; `device` is then the recorded one."""
    launch: Launch | None = None
    """A user's script, which trains in the place of the workload."""
    host: Host | None = None
    """Of a simulated GPU: a virtual host, so that nothing is measured; None: this machine."""

    @property
    def gpu(self) -> Gpu | None:
        """The data sheet of a simulated device."""
        return gpu_of(self.device)


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
    host: str | None = None,
) -> Plan:
    """A checked plan, with this machine's defaults for what is left out.

    Args:
        workload: a built-in one, or `package.module:name`.
        preset: `smoke`, `quick` or `paper`.
        stages: optimizations in their order; the whole ladder if None. The baseline always comes first.
        settings: switches set from the baseline up.
        device: `cuda`, `mps` or `cpu`; `sim:v100` simulates a GPU beside this machine's own loader;
            `recorded:NAME` plays a recording, and measures nothing.
        options: the workload's constructor arguments, over those of the preset.
        below: start from the default ladder as it stands below the first stage, not from the plain loop.
        seed: of weights, order and augmentation.
        timeout_s: for one stage.
        host: of a simulated GPU: `mine`, or a virtual one, with which nothing is measured: `article`,
            `ideal`, or its numbers, such as `cores=8,fetch_ms=1.85`.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """
    checked = {
        name: getattr(Recipe().replace(**{name: value}), name) for name, value in (settings or {}).items()
    }
    if device and device.startswith(recordings.PREFIX):
        more = {"settings": checked, "below": below, "seed": seed}
        return _of_recording(device.removeprefix(recordings.PREFIX), workload, preset, stages, options, more)
    where = machine.check_device(device)
    sheet, virtual = gpu_of(where), hosts.host(host)
    if host and not sheet:
        raise InvalidValue(
            f"--host was given '{host}' for {where}",
            "It is the host of a simulated GPU: add --device sim:v100",
        )
    size = presets.preset(preset, "cuda" if sheet else where.split(":")[0])
    if virtual == hosts.ARTICLE and preset is None:
        size = presets.PRESETS["paper"]  # the article's sizes, whatever the environment says
    names = tuple(stages) if stages is not None else article.LADDER if virtual == hosts.ARTICLE else LADDER
    for name in names:
        optimization(name)
    default = {} if sheet else DEFAULT_WORKLOAD
    chosen = workload or default.get(size.name, "cifar_resnet18")
    workloads.reference(chosen)
    return Plan(
        chosen, size, where, names, settings=checked, options=dict(options or {}), below=below, seed=seed,
        timeout_s=timeout_s, host=virtual,
    )  # fmt: skip


def _of_recording(
    name: str, workload: str | None, preset: str | None, stages: Sequence[str] | None,
    options: Mapping[str, Any] | None, more: Mapping[str, Any],
) -> Plan:  # fmt: skip
    """The plan that plays a recording: its own workload, options and preset, and the stages asked for."""
    runs = recordings.find(name).runs
    first, own = runs[0], [run.stage for run in runs if run.stage != AGAIN]
    for stage in stages or []:
        if stage not in own:
            optimization(stage)
    same = {
        "workload": workload is None or first.workload in (workload, workloads.reference(workload)),
        "preset": preset in (None, first.preset),
        "option": all(first.options.get(key) == value for key, value in (options or {}).items()),
    }
    if other := [what for what, is_same in same.items() if not is_same]:
        raise InvalidValue(
            f"the recording '{name}' is of another {' and '.join(other)}: {first.workload} at the preset "
            f"{first.preset or '–'}",
            "Leave workload, preset and options out to play it, or choose another device",
        )
    sizes = presets.PRESETS.get(first.preset, presets.PRESETS["quick"])
    size = replace(sizes, name=first.preset, batch_size=Recipe.from_dict(first.recipe).batch_size)
    return Plan(
        first.workload, size, first.device, tuple(own if stages is None else stages), recorded=name,
        options=first.options, **more,
    )  # fmt: skip


def target(plan: Plan, description: Description) -> Target:
    """Where a plan's stages are to run, by what the workload and the device report."""
    sheet = plan.gpu
    kind = "cuda" if sheet else plan.device.split(":")[0]
    return Target(
        device=kind,
        offers=frozenset(description.offers),
        convolves=description.convolves,
        bf16=sheet.architecture != "volta" if sheet else description.facts.bf16 is not False,
        compiler=bool(sheet) or not machine.compiler_problem(kind),
        glibc=platform.libc_ver()[0] == "glibc",
        count=description.facts.count or 1,
        anchored=frozenset(sheet.anchored) if sheet else None,
    )


def script(recipe: Recipe, description: Description, device: str, seed: int = 0, steps: int = 8) -> str:
    """The standalone script of a recipe for a workload that was loaded."""
    from perfkit import export

    device = "cuda" if gpu_of(device) else device
    return export.script(recipe, description.reference, description.options, device, seed, steps)


def recipe_diff(plan: Plan, description: Description, before: Recipe, after: Recipe, name: str) -> str:
    """What changes in the script from one recipe to another, called `name`."""
    from perfkit import export

    texts = [script(recipe, description, plan.device, plan.seed) for recipe in (before, after)]
    return export.diff(texts[0], texts[1], (f"train.py before {name}", f"train.py with {name}"))


def scripts(runs: Sequence[Run]) -> dict[str, str]:
    """The script of each stage that was measured, by its title."""
    from perfkit import export

    return {
        run.title: export.script(
            Recipe.from_dict(run.recipe),
            run.workload,
            run.options,
            "cuda" if run.simulated else run.device,
            run.seed,
            len(run.losses) or 8,
        )
        for run in runs
        if run.status == "ok" and not run.is_script and run.stage != AGAIN
    }
