"""Plans a training step in a process of its own, and keeps the plan."""

from __future__ import annotations

from typing import Any

from perfkit.program.recipe import Recipe
from perfkit.simulate.step import Step


def plan_step(
    workload: str, recipe: Recipe, *, preset: str = "", options: dict[str, Any] | None = None, seed: int = 0
) -> Step:
    """One steady training step of a workload under a recipe, whatever the GPU.

    Args:
        workload: a built-in one's name, or `package.module:name`.
        recipe: its switches; those that act on the host alone change nothing.
        preset: of the workload; none if empty.
        options: constructor arguments, which go before those of the preset.
        seed: of the training.

    Raises:
        InvalidValue: the step cannot be planned: what it needs that a simulation does not have.
        WorkloadError: the workload cannot be imported or built.
    """
    from perfkit import workloads
    from perfkit.simulate import operators

    chosen = workloads.options_for(workloads.find(workload), preset, options or {})
    return operators.of_training(workloads.load(workload, chosen), recipe, seed)
