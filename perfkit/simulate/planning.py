"""Plans a training step in a process of its own, and keeps the plan.

The process stays: importing torch takes seconds, planning less than one. It is not the one that measures:
after a backward pass there are threads of autograd, and a process with threads should not fork workers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import threading
from pathlib import Path
from typing import Any

import msgspec

from perfkit.errors import InvalidValue
from perfkit.machine.folders import cache_folder, write_atomically
from perfkit.recipe import Recipe
from perfkit.simulate.planner import Planned, Request, have_changed, planner
from perfkit.simulate.step import Step
from perfkit.workloads import reference

FORMAT = 3
"""Of plans: older ones in the cache are not used."""
MOST_PLANS = 300

_ON_THE_HOST = (
    "workers", "prefetch_factor", "cpu_threads", 
    "no_sync",
)  # fmt: skip


def refusal(recipe: Recipe) -> str:
    """Why a recipe cannot be simulated, whatever the workload; empty if nothing speaks against it."""
    if recipe.ranks > 1:
        return "several ranks are not simulated: nothing here says how fast they exchange gradients"
    if recipe.compile and recipe.compile_mode == "max-autotune":
        return "max-autotune times kernels on the GPU itself: what it would choose cannot be predicted"
    return ""


def on_device(recipe: Recipe) -> Recipe:
    """The recipe without what acts on the host alone: recipes that agree here have the same plan."""
    defaults = Recipe().to_dict()
    return recipe.replace(**{name: defaults[name] for name in _ON_THE_HOST})


def plan_step(
    workload: str,
    recipe: Recipe,
    *,
    preset: str = "",
    options: dict[str, Any] | None = None,
    cancelled: threading.Event | None = None,
) -> Step:
    """One steady training step of a workload under a recipe, whatever the GPU.

    Args:
        workload: a built-in one's name, or `package.module:name`.
        recipe: its switches; those that act on the host alone change nothing.
        preset: of the workload; none if empty.
        options: constructor arguments, which go before those of the preset.
        cancelled: set from any thread to stop planning.

    Raises:
        InvalidValue: the step cannot be planned, with what it needs that a simulation does not have.
        WorkloadError: the workload cannot be imported or built.
        RunFailed: the planning process ended.
        Cancelled: `cancelled` was set.
    """
    if reason := refusal(recipe):
        raise InvalidValue(reason, "Leave that switch as it is, or measure on a device that is here")
    request = Request(reference(workload), preset, options or {}, on_device(recipe).to_dict())
    file = cache_folder() / "plans" / f"{_key(request)}.json"
    kept = _read(file)
    if kept is None:
        kept = planner().ask(request, cancelled or threading.Event())
        _write(file, kept)
    return kept.step


def _key(request: Request) -> str:
    versions = [importlib.metadata.version(name) for name in ("torch", "torchvision")]
    text = json.dumps([FORMAT, versions, msgspec.to_builtins(request)], sort_keys=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _read(file: Path) -> Planned | None:
    """A plan from the cache; None if there is none, if it is damaged, or if a source has changed since."""
    try:
        kept = msgspec.json.decode(file.read_bytes(), type=Planned)
    except (OSError, msgspec.DecodeError):
        return None
    if have_changed(kept.sources):
        return None
    os.utime(file)
    return kept


def _write(file: Path, kept: Planned) -> None:
    """Keeps a plan, if the folder can be written; the ones that were not used for longest go."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, msgspec.json.encode(kept))
        plans = sorted(file.parent.glob("*.json"), key=lambda path: path.stat().st_mtime)
        for path in plans[:-MOST_PLANS]:
            path.unlink(missing_ok=True)
    except OSError:
        pass
