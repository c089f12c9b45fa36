"""Which switches can act where, and why the others cannot."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfkit.errors import WorkloadError
from perfkit.recipe import Recipe, Value, shown, switches


class Reason(str):
    """Why a switch cannot act: a text for people, which is empty where it can, and a code for programs.

    Codes: `needs_gpu`, `needs_newer_gpu`, `needs_more_gpus`, `needs_cpu`, `needs_compiler`, `needs_ranks`,
    `needs_switch`, `needs_workload`, `needs_convolution`, `needs_glibc`, `not_simulated`, `not_combined`,
    `not_supported`, `script` (the script refuses it) and `several`.
    """

    code: str

    def __new__(cls, code: str = "", text: str = "") -> "Reason":
        reason = super().__new__(cls, text)
        reason.code = code
        return reason


CAN = Reason()
"""Nothing speaks against it."""


@dataclass(frozen=True)
class Target:
    """Where a recipe is to run: what decides whether a switch can act there."""

    device: str
    """`cpu`, `cuda` or `mps`."""
    offers: frozenset[str] = frozenset()
    """The switches that the workload offers beyond those that work with any workload."""
    convolves: bool = True
    """Whether the model has convolutions over images."""
    bf16: bool = True
    """Whether the device computes in bfloat16."""
    compiler: bool = True
    """Whether torch.compile finds what it needs (a C++ compiler on the CPU, Triton on CUDA)."""
    glibc: bool = True
    """Whether processes allocate host memory by glibc, as on most Linux systems."""
    count: int = 1
    """Devices of this kind on this machine."""
    anchored: frozenset[str] | None = None
    """Of a simulated GPU: the precisions that published figures vouch for; None for a real device."""
    cores: int | None = None
    """Cores that load data, where the host is not this machine."""
    doubtful: Mapping[str, str] = field(default_factory=dict)
    """Switches that can act but are not expected to gain, with the reason: a ladder tries them last."""
    own: Mapping[str, Value] = field(default_factory=dict)
    """Of a script: the switches as it sets them by itself, in the place of the defaults."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Of a script: the switches that cannot be set from outside, and why."""

    def default(self, name: str) -> Value:
        """What a switch is without being set."""
        return self.own.get(name, switches()[name].default)


def precision(recipe: Recipe, target: Target) -> str:
    """What the heavy operators of a GPU compute in: `float32`, `tf32`, `float16` or `bfloat16`."""
    if recipe.amp != "off":
        return {"fp16": "float16", "bf16": "bfloat16"}[recipe.amp]
    # torch's own default has convolutions in TF32 where the GPU has it, which came with bfloat16.
    wanted = {"default": "tf32" if target.bf16 and target.convolves else "float32", "ieee": "float32"}
    return wanted.get(recipe.fp32_precision, "tf32")


def not_anchored(recipe: Recipe, target: Target) -> Reason:
    """Why a simulated GPU refuses a recipe's precision."""
    if target.anchored is None or precision(recipe, target) in target.anchored:
        return CAN
    allowed = ", ".join(sorted(target.anchored)) or "none"
    return Reason(
        "not_simulated",
        f"this GPU is not simulated in {precision(recipe, target)}: there is no published measurement to "
        f"check it against (precisions with one: {allowed})",
    )


@dataclass(frozen=True)
class Rule:
    """A switch cannot act where `refuses` is true; `{r}` and `{t}` in the text are recipe and target."""

    switch: str
    code: str
    refuses: Callable[[Recipe, Target], bool]
    text: str


# fmt: off
RULES = (
    Rule("amp", "not_supported", lambda r, t: r.amp == "fp16" and t.device == "cpu",
         "perfkit runs fp16 with gradient scaling on accelerators only; on a CPU use bf16"),
    Rule("amp", "needs_newer_gpu", lambda r, t: r.amp == "bf16" and not t.bf16,
         "this device does not compute in bfloat16; use fp16"),
    Rule("amp", "not_simulated", lambda r, t: r.amp != "off" and bool(not_anchored(r, t)),
         "this GPU is not simulated in {r.amp}: no published measurement can check it"),
    Rule("fp32_precision", "needs_gpu", lambda r, t: r.fp32_precision == "tf32" and t.device != "cuda",
         "TF32 is a number format of CUDA devices (this run is on {t.device})"),
    Rule("fp32_precision", "needs_newer_gpu", lambda r, t: r.fp32_precision == "tf32" and not t.bf16,
         "this GPU does not compute in TF32, which came with Ampere, as bfloat16 did"),
    Rule("fp32_precision", "not_simulated", lambda r, t: r.amp == "off" and bool(not_anchored(r, t)),
         "this GPU is not simulated in {r.fp32_precision}: no published measurement can check it"),
    Rule("channels_last", "needs_convolution", lambda r, t: not t.convolves,
         "this model has no convolution; channels_last is a memory layout of images"),
    Rule("compile", "needs_compiler", lambda r, t: not t.compiler,
         "torch.compile finds no compiler here; `perfkit doctor` says what to install"),
    Rule("compile_mode", "needs_gpu", lambda r, t: r.compile_mode == "reduce-overhead" and t.device != "cuda",
         "reduce-overhead uses CUDA graphs, which this device does not have"),
    Rule("compile_mode", "not_simulated",
         lambda r, t: r.compile_mode != "default" and t.anchored is not None,
         "no published figures say what another compile_mode than the default gains"),
    Rule("activation_checkpointing", "not_combined", lambda r, t: r.compile,
         "torch.compile decides itself what to recompute in backward; perfkit does not combine the two"),
    Rule("wait_policy", "needs_cpu", lambda r, t: t.device != "cpu",
         "the compute threads of the CPU do little beside a GPU"),
    Rule("allocator", "needs_cpu", lambda r, t: t.device != "cpu",
         "a GPU's memory has an allocator of its own, which keeps what is freed"),
    Rule("allocator", "needs_glibc", lambda r, t: not t.glibc,
         "the variables are those of glibc, which this system does not use"),
    Rule("no_sync", "needs_ranks", lambda r, t: r.ranks == 1,
         "no_sync acts between ranks, and there is only one"),
    Rule("ranks", "not_simulated", lambda r, t: t.anchored is not None,
         "a simulated GPU trains alone: communication is not simulated"),
    Rule("ranks", "not_supported", lambda r, t: t.device == "mps",
         "torch has no communication between ranks on mps"),
    Rule("ranks", "needs_more_gpus", lambda r, t: t.device == "cuda" and r.ranks > t.count,
         "NCCL needs one GPU per rank, and this run has {t.count}"),
)
# fmt: on


def why_not(name: str, recipe: Recipe, target: Target) -> Reason:  # noqa: PLR0911 - a case each
    """Why a switch, as this recipe sets it, cannot act there; empty where it can (or is off)."""
    switch = switches()[name]
    if getattr(recipe, name) == target.default(name):
        return CAN
    if name in target.refused:
        return Reason("script", target.refused[name])
    if switch.needs == "cuda" and target.device != "cuda":
        return Reason("needs_gpu", f"needs a CUDA device (this run is on {target.device})")
    if switch.needs == "workload" and name not in target.offers:
        return Reason("needs_workload", f"the workload does not offer {name}")
    partner, idle_value = switch.idle_when or ("", False)
    if partner and getattr(recipe, partner) == idle_value:
        label = switches()[partner].label
        return Reason("needs_switch", f"acts only with {label} (here: {shown(idle_value)})")
    for rule in RULES:
        if rule.switch == name and rule.refuses(recipe, target):
            return Reason(rule.code, rule.text.format(r=recipe, t=target))
    return CAN


def applicable(recipe: Recipe, target: Target) -> tuple[Recipe, dict[str, Reason]]:
    """What of a recipe can act on a target.

    Returns:
        The recipe with every switch that cannot act put back, and the reasons by switch.
    """
    reasons: dict[str, Reason] = {}
    while refused := {name: reason for name in switches() if (reason := why_not(name, recipe, target))}:
        reasons |= refused
        recipe = recipe.replace(**{name: target.default(name) for name in refused})
    return recipe, reasons


def joined(reasons: Mapping[str, str]) -> Reason:
    """Reasons by switch as one: `Label, Label: why; Label: why`."""
    labels: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        labels.setdefault(reason, []).append(switches()[name].label)
    text = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in labels.items())
    codes = {getattr(reason, "code", "script") for reason in reasons.values()}
    return Reason(codes.pop() if len(codes) == 1 else "several" if codes else "", text)


def offers(workload: Any) -> frozenset[str]:
    """The workload-dependent switches that it honours.

    Raises:
        WorkloadError: it offers something that is no such switch.
    """
    allowed = {name for name, switch in switches().items() if switch.needs == "workload"}
    offered = frozenset(getattr(workload, "offers", ()))
    if unknown := offered - allowed:
        raise WorkloadError(
            f"the workload offers {', '.join(sorted(unknown))}", f"Allowed: {', '.join(sorted(allowed))}"
        )
    return offered
