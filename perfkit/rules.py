"""Which switches can act where, and why the others cannot. Only `why_not` decides this."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfkit.errors import WorkloadError
from perfkit.recipe import Recipe, Value, shown, switches


@dataclass(frozen=True)
class Target:
    """Where a recipe is to run: the facts that decide whether a switch can act there.

    The workload `offers` some switches beyond those that work with any, and its model `convolves` images or
    not. `compiler` is whether torch.compile finds one. The `device` is `cpu`, `cuda` or `mps`.
    """

    device: str
    offers: frozenset[str] = frozenset()
    convolves: bool = True
    bf16: bool = True
    compiler: bool = True
    glibc: bool = True
    cores: int | None = None  # for loading data, if the host is not this machine
    defaults: Mapping[str, Value] = field(default_factory=dict)
    """Defaults that replace torch's, such as the values that a script sets itself."""
    refuses: Callable[[str, Recipe], str] = lambda name, recipe: ""
    """Returns why a source of runs cannot set a switch as a recipe does; empty if it can."""

    def default(self, name: str) -> Value:
        return self.defaults.get(name, switches()[name].default)


def why_not(name: str, recipe: Recipe, target: Target) -> str:
    """Why a switch, as this recipe sets it, cannot act on a target; empty if it can, or is not set."""
    switch = switches()[name]
    if getattr(recipe, name) == target.default(name):
        return ""
    if reason := target.refuses(name, recipe):
        return reason
    if switch.needs == "cuda" and target.device != "cuda":
        return f"needs a CUDA device (this run is on {target.device})"
    if switch.needs == "workload" and name not in target.offers:
        return f"the workload does not offer {name}"
    if switch.idle_when:
        partner, idle_value = switch.idle_when
        if getattr(recipe, partner) == idle_value:
            return f"acts only with {switches()[partner].label} (here: {shown(idle_value)})"
    return _refused_value(name, recipe, target)


def _refused_value(name: str, recipe: Recipe, target: Target) -> str:
    """Why the value that a recipe gives a switch cannot act on a target; empty if it can."""
    reason = ""
    match name, getattr(recipe, name):
        case "amp", "fp16" if target.device == "cpu":
            reason = "perfkit runs fp16 with gradient scaling on accelerators only; on a CPU use bf16"
        case "amp", "bf16" if not target.bf16:
            reason = "this device does not compute in bfloat16; use fp16"
        case "fp32_precision", "tf32" if target.device != "cuda":
            reason = f"TF32 is a format of CUDA devices (this run is on {target.device})"
        case "fp32_precision", "tf32" if not target.bf16:
            reason = "this GPU has no TF32, which came with Ampere, as did bfloat16"
        case "channels_last", _ if not target.convolves:
            reason = "this model has no convolution; channels_last is a memory layout of images"
        case "compile", _ if not target.compiler:
            reason = "torch.compile finds no compiler here; `perfkit doctor` says what to install"
        case "compile_mode", "reduce-overhead" if target.device != "cuda":
            reason = "reduce-overhead uses CUDA graphs, which this device does not have"
        case "wait_policy", _ if target.device != "cpu":
            reason = "the CPU's compute threads have little to do when a GPU trains"
        case "allocator", _ if target.device != "cpu":
            reason = "GPU memory has its own allocator, which keeps freed memory"
        case "allocator", _ if not target.glibc:
            reason = "it sets variables of glibc, which this system does not use"
    return reason


def _refused(recipe: Recipe, target: Target) -> dict[str, str]:
    """The switches of a recipe that cannot act on a target, with the reasons."""
    reasons = {name: why_not(name, recipe, target) for name in switches()}
    return {name: reason for name, reason in reasons.items() if reason}


def applicable(recipe: Recipe, target: Target) -> tuple[Recipe, dict[str, str]]:
    """The recipe with the switches that cannot act on a target reset to their defaults, and the reasons."""
    reasons: dict[str, str] = {}
    while refused := _refused(recipe, target):
        reasons |= refused
        recipe = recipe.replace(**{name: target.default(name) for name in refused})
    return recipe, reasons


def joined(reasons: Mapping[str, str]) -> str:
    """Joins the reasons of switches into one line: `Label, Label: why; Label: why`."""
    labels: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        labels.setdefault(reason, []).append(switches()[name].label)
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in labels.items())


def offers(workload: Any) -> frozenset[str]:
    """The workload-dependent switches that a workload supports."""
    allowed = {name for name, switch in switches().items() if switch.needs == "workload"}
    offered = frozenset(getattr(workload, "offers", ()))
    if unknown := offered - allowed:
        what = f"the workload offers {', '.join(sorted(unknown))}"
        raise WorkloadError(what, f"Allowed: {', '.join(sorted(allowed))}")
    return offered
