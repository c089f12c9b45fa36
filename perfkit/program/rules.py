"""Which switches can act where, and why the others cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfkit.errors import WorkloadError
from perfkit.program.recipe import Recipe, Switch, shown, switches


@dataclass(frozen=True)
class Target:
    """Where a recipe is to run: what decides whether a switch can act there."""

    device: str
    """`cpu`, `cuda` or `mps`."""
    offers: frozenset[str] = frozenset()
    """The switches that the workload offers beyond those any workload has."""
    convolves: bool = True
    """Whether the model has convolutions over images."""
    bf16: bool = True
    """Whether the device computes in bfloat16."""
    compiler: bool = True
    """Whether torch.compile finds what it needs (a C++ compiler on the CPU, Triton on CUDA)."""
    count: int = 1
    """Devices of this kind on this machine."""
    nodes: int = 1
    """Machines that train together."""


def why_not(name: str, recipe: Recipe, target: Target) -> str:
    """Why a switch, as this recipe sets it, cannot act there; empty where it can (or is off)."""
    switch = switches()[name]
    value = getattr(recipe, name)
    if value == switch.default:
        return ""
    rules: list[Callable[[], str]] = [
        lambda: _lacks_device(switch, target),
        lambda: _lacks_partner(switch, recipe),
        lambda: _special(name, recipe, target),
    ]
    return next((reason for rule in rules if (reason := rule())), "")


def _lacks_device(switch: Switch, target: Target) -> str:
    if switch.needs == "cuda" and target.device != "cuda":
        return f"{switch.label} needs a CUDA device; this run is on {target.device}"
    if switch.needs == "workload" and switch.name not in target.offers:
        return f"the workload does not offer {switch.name}"
    return ""


def _lacks_partner(switch: Switch, recipe: Recipe) -> str:
    if switch.idle_when and getattr(recipe, switch.idle_when[0]) == switch.idle_when[1]:
        partner = switches()[switch.idle_when[0]]
        return f"{switch.label} acts only with {partner.label} (here: {shown(switch.idle_when[1])})"
    if recipe.device_dataset and switch.name in _LOADER_SWITCHES:
        return f"{switch.label} acts on a loader; with resident data there is none"
    return ""


_LOADER_SWITCHES = ("workers", "pin_memory", "non_blocking", "device_prefetch", "batched_fetch")


def _special(name: str, recipe: Recipe, target: Target) -> str:
    mine = ((refuses, reason) for who, refuses, reason in _RULES if who == name)
    return next((reason(recipe, target) for refuses, reason in mine if refuses(recipe, target)), "")


_Rule = tuple[str, Callable[[Recipe, Target], bool], Callable[[Recipe, Target], str]]
_RULES: tuple[_Rule, ...] = (
    ("amp", lambda r, t: r.amp == "fp16" and t.device == "cpu",
     lambda r, t: "fp16 with gradient scaling needs an accelerator; on a CPU use bf16"),
    ("amp", lambda r, t: r.amp == "bf16" and not t.bf16,
     lambda r, t: "this device does not compute in bfloat16; use fp16"),
    ("channels_last", lambda r, t: not t.convolves,
     lambda r, t: "channels_last orders the values of images; this model has no convolution"),
    ("compile", lambda r, t: not t.compiler,
     lambda r, t: "torch.compile finds no compiler here; `perfkit doctor` says what to install"),
    ("compile_mode", lambda r, t: r.compile_mode == "reduce-overhead" and t.device != "cuda",
     lambda r, t: "reduce-overhead means CUDA graphs; there are none on this device"),
    ("device_prefetch", lambda r, t: not r.pin_memory,
     lambda r, t: "copies overlap only from pinned memory; switch pin_memory on"),
    ("activation_checkpointing", lambda r, t: r.compile,
     lambda r, t: "torch.compile decides itself what backward computes again; the two are not combined here"),
    ("embedding_device", lambda r, t: t.device == "cpu",
     lambda r, t: "on a CPU the embedding and the rest share the host's memory already"),
    ("no_sync", lambda r, t: r.static_graph,
     lambda r, t: "DDP learns a static graph from its first backward, which no_sync would leave out"),
    ("no_sync", lambda r, t: r.ranks == 1, lambda r, t: "no_sync acts between ranks; there is one"),
    ("static_graph", lambda r, t: r.compile,
     lambda r, t: "torch.compile splits the graph for DDP itself; static_graph is not combined with it"),
    ("ranks", lambda r, t: t.device == "mps", lambda r, t: "torch lets no ranks communicate on mps"),
    ("ranks", lambda r, t: r.ranks % t.nodes != 0,
     lambda r, t: f"{r.ranks} ranks cannot be split over {t.nodes} machines evenly"),
    ("ranks", lambda r, t: t.device == "cuda" and r.ranks > t.count * t.nodes,
     lambda r, t: f"NCCL wants a GPU for each rank; there are {t.count * t.nodes}"),
    ("ranks", lambda r, t: r.embedding_device != "device",
     lambda r, t: "DDP wants a model on one device; use embedding_device=device"),
)  # fmt: skip
"""Who refuses, when, and why."""


def applicable(recipe: Recipe, target: Target) -> tuple[Recipe, dict[str, str]]:
    """What of a recipe can act on a target.

    Returns:
        The recipe with every switch that cannot act put back to its default, and the reasons by switch.
    """
    reasons: dict[str, str] = {}
    while found := {name: reason for name in switches() if (reason := why_not(name, recipe, target))}:
        reasons |= found
        recipe = recipe.replace(**{name: switches()[name].default for name in found})
    return recipe, reasons


def offers(workload: Any) -> frozenset[str]:
    """The workload-dependent switches that it honours.

    Raises:
        WorkloadError: it offers something that is no such switch.
    """
    allowed = {name for name, switch in switches().items() if switch.needs == "workload"}
    given = frozenset(getattr(workload, "offers", ()))
    if given - allowed:
        raise WorkloadError(
            f"the workload offers {', '.join(sorted(given - allowed))}",
            f"Allowed: {', '.join(sorted(allowed))}",
        )
    return given
