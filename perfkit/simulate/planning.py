"""Plans a training step in a process of its own: tensors without numbers change settings of torch."""

import threading
from typing import Any

from perfkit.errors import InvalidValue
from perfkit.process.child import call
from perfkit.recipe import Recipe
from perfkit.simulate.step import Step
from perfkit.worker.messages import Description, DeviceFacts


def plan_step(
    workload: str, options: dict[str, Any], recipe: Recipe, cancelled: threading.Event | None = None
) -> Step:
    """One steady training step of a workload under a recipe, whatever the GPU.

    Args:
        workload: `package.module:name`.
        options: all arguments of its constructor.
        recipe: its switches.
        cancelled: set from any thread to stop.

    Raises:
        InvalidValue: the step cannot be planned.
        RunFailed: the workload cannot be imported or built.
        Cancelled: `cancelled` was set.
    """
    if recipe.ranks > 1:
        raise _refused("several ranks are not simulated: nothing says how fast they exchange gradients")
    if recipe.compile and recipe.compile_mode != "default":
        raise _refused(
            f"what compile_mode={recipe.compile_mode} gains on a GPU was never compared with figures"
        )
    step = call(f"{__name__}:record", workload, options, recipe.to_dict(), cancelled=cancelled)
    if isinstance(step, str):
        raise _refused(f"a step of '{workload}' cannot be simulated: {step}")
    return step  # type: ignore[no-any-return]


def _refused(what: str) -> InvalidValue:
    return InvalidValue(what, "Change that part, or measure it on a device that is here (--device cpu, cuda)")


def record(workload: str, options: dict[str, Any], switches: dict[str, Any]) -> Step | str:
    """In the planning process: a step, or why there is no plan, in the user's words."""
    import torch

    from perfkit import workloads
    from perfkit.simulate import recording

    torch.set_num_threads(1)
    target = workloads.load(workload, options)
    try:
        return recording.record(target, Recipe.from_dict(switches))
    except Exception as problem:  # whatever the workload's code raises
        return recording.reason(problem)


def describe(workload: str, preset: str, options: dict[str, Any]) -> Description:
    """In the planning process: what a workload offers."""
    import torch

    from perfkit import rules, workloads

    complete = workloads.options_for(workloads.find(workload), preset, options)
    target = workloads.load(workload, complete)
    facts = DeviceFacts(1, str(torch.__version__), count=1)
    offers = sorted(rules.offers(target))
    return Description(workloads.reference(workload), complete, offers, facts, workloads.convolves(target))
