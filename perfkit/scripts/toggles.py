"""Switches that can be set from outside a script: how each is read from the live objects, and who cannot be.

The switches are those of `program.recipe`. Loader arguments are set in `loaders`, what acts on the model in
`models`, on the optimizer in `optimizers`; process-wide settings here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import BatchSampler

from perfkit.scripts.edits import EDITS
from perfkit.scripts.loaders import SWITCHES

if TYPE_CHECKING:
    from perfkit.scripts.script import Script

Reading = tuple[Any, str]
"""The state in terms of the switch, None if it cannot be read, and the evidence in words."""


def apply_global(script: Script) -> None:
    """Sets what holds for the whole process."""
    on = script.toggles
    if on.get("cpu_threads"):
        torch.set_num_threads(on["cpu_threads"])
    if "fp32_precision" in on and on["fp32_precision"] != "default":
        for part in (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
            part.fp32_precision = on["fp32_precision"]
    if "cudnn_benchmark" in on:
        torch.backends.cudnn.benchmark = on["cudnn_benchmark"]


def patch_copies(script: Script) -> None:
    """Sees where batches are copied; with `non_blocking` set, those from pinned memory do not wait."""
    tensor: Any = torch.Tensor
    plain = {name: getattr(tensor, name) for name in ("to", "cuda")}

    def patched(name: str) -> Callable[..., torch.Tensor]:
        def copy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if script.steps.count < script.FIRST and id(self) in script.loaders.batch_ids:
                script.sites.note("copy", name, tuple(sorted(kwargs)))
            if script.toggles.get("non_blocking") and self.device.type == "cpu" and self.is_pinned():
                kwargs = {"non_blocking": True, **kwargs}
            return plain[name](self, *args, **kwargs)

        return copy

    for name in plain:
        setattr(tensor, name, patched(name))


# ---------------------------------------------------------------- what is set now


def _loader(argument: str) -> Callable[[Script], Reading]:
    def read(script: Script) -> Reading:
        if script.loaders.training is None:
            return None, "no DataLoader"
        value = getattr(script.loaders.training, argument, None)
        return value, f"the training loader has {argument}={value}"

    return read


def _batch_size(script: Script) -> Reading:
    loader = script.loaders.training
    value = getattr(loader, "batch_size", None) or getattr(
        getattr(loader, "batch_sampler", None), "batch_size", None
    )
    return value, f"{value} samples in a batch of the training loader" if value else "no batch size to read"


def _workers(script: Script) -> Reading:
    alive = sum(worker.is_alive() for worker in getattr(script.loaders.iterator, "_workers", ()))
    if script.loaders.training is None:
        return None, "no DataLoader"
    found = f"{alive} worker process{'es' if alive > 1 else ''} alive"
    return alive, found if alive else "data is fetched in the training process"


def _prefetch_factor(script: Script) -> Reading:
    value = getattr(script.loaders.training, "prefetch_factor", None)
    return value, f"{value} batches a worker ahead" if value else "no workers, nothing is prefetched"


def _amp(script: Script) -> Reading:
    models = script.models
    kinds = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    entered = script.toggles.get("amp", "off") != "off" and "amp" not in script.refused
    computed = models.output_dtype if models.output_dtype in kinds else None
    kind = computed or models.autocast_dtype
    if kind is None and entered and models.output_dtype is not None:
        return script.toggles["amp"], "autocast is entered around the model, whose output it casts back"
    shown = str(models.output_dtype).removeprefix("torch.")
    how = " under an autocast of the script's own" if models.autocast_dtype and not entered else ""
    return kinds.get(kind, "off") if kind else "off", f"the model's output is {shown}{how}"


def _channels_last(script: Script) -> Reading:
    weights = script.models.weights()
    on = bool(weights) and all(w.is_contiguous(memory_format=torch.channels_last) for w in weights)
    inputs = "NHWC" if script.models.inputs_last else "NCHW"
    if not weights:
        return False, "the model has no 4-dimensional weights"
    return on, f"{len(weights)} weights are {'NHWC' if on else 'NCHW'}, the input is {inputs}"


def _compile(script: Script) -> Reading:
    from perfkit.scripts.models import compile_counters

    graphs = compile_counters()["graphs"]
    return graphs > 0, f"{graphs} graph(s) compiled" if graphs else "runs eagerly"


def _optimizer_impl(script: Script) -> Reading:
    if not script.optimizers.found:
        return None, "no optimizer"
    group = script.optimizers.found[-1].param_groups[0]
    fused, foreach = group.get("fused"), group.get("foreach")
    state = "fused" if fused else "foreach" if foreach else "loop" if foreach is False else "default"
    return state, f"{type(script.optimizers.found[-1]).__name__}: {state}"


def _set_to_none(script: Script) -> Reading:
    value = script.optimizers.sets_to_none
    return value, "zero_grad is never called" if value is None else f"zero_grad(set_to_none={value})"


def _fp32_precision(script: Script) -> Reading:
    products = torch.backends.cuda.matmul.fp32_precision
    convolutions = torch.backends.cudnn.conv.fp32_precision
    both = products if products == convolutions and products != "none" else "default"
    return both, f"float32 products: {products}, convolutions: {convolutions}"


def _cpu_threads(script: Script) -> Reading:
    return torch.get_num_threads(), f"{torch.get_num_threads()} compute threads"


def _cudnn_benchmark(script: Script) -> Reading:
    value = torch.backends.cudnn.benchmark
    return value, "cuDNN times algorithms" if value else "cuDNN's heuristic choice"


def _non_blocking(script: Script) -> Reading:
    if script.models.device().type == "cpu":
        return None, "nothing is copied on a CPU"
    on = script.toggles.get("non_blocking")
    return on, "copies from pinned memory do not wait" if on else "as the script copies"


READ: dict[str, Callable[[Script], Reading]] = {
    "batch_size": _batch_size, "workers": _workers,
    "prefetch_factor": _prefetch_factor, "pin_memory": _loader("pin_memory"), "non_blocking": _non_blocking,
    "zero_grad_set_to_none": _set_to_none, "channels_last": _channels_last, "amp": _amp,
    "fp32_precision": _fp32_precision, "cudnn_benchmark": _cudnn_benchmark, "optimizer_impl": _optimizer_impl,
    "compile": _compile, "compile_mode": lambda s: (s.toggles.get("compile_mode"), "as it was asked for"),
    "cpu_threads": _cpu_threads,
}  # fmt: skip
"""How each switch that can be set from outside is read."""


def why_not(script: Script) -> dict[str, str]:
    """Switches that cannot be set from outside in this script, with the reason."""
    reasons = {name: f"needs the script's own code: {edit}" for name, edit in EDITS.items()}
    loader, models = script.loaders.training, script.models
    if loader is None:
        missing = "the script has no DataLoader: change how it makes its batches"
        reasons |= dict.fromkeys(SWITCHES, missing)
    else:
        reasons |= script.loaders.why_not(loader.dataset, loader.num_workers, _has_own_batches(loader))
    if models.device().type != "cuda":
        for name in ("pin_memory", "non_blocking"):
            reasons[name] = (
                "pinned memory and copies that do not wait need a GPU; this script trains on a CPU"
            )
        reasons["fp32_precision"] = "TF32 is a number format of CUDA devices; this script trains on a CPU"
        reasons["cudnn_benchmark"] = "cuDNN runs on CUDA devices; this script trains on a CPU"
    if not models.weights():
        reasons["channels_last"] = "the model has no 4-dimensional weights"
    if models.compiled_by_script:
        reasons["compile"] = "the script compiles the model already"
    if not script.optimizers.found:
        reasons["optimizer_impl"] = "the script has no optimizer of torch"
        reasons["zero_grad_set_to_none"] = "the script has no optimizer of torch"
    elif any("foreach" not in group for group in script.optimizers.found[-1].param_groups):
        name = type(script.optimizers.found[-1]).__name__
        reasons["optimizer_impl"] = f"{name} has no foreach or fused implementation"
    return reasons | script.refused


def _has_own_batches(loader: Any) -> bool:
    """Whether it was given a sampler of whole batches; its own is of torch's class."""
    return type(loader.batch_sampler) is not BatchSampler


def settings(script: Script) -> dict[str, Any]:
    """The switches as they are now, as far as they can be read."""
    values = {name: read(script)[0] for name, read in READ.items()}
    steps, backwards = script.steps.count, script.gradients.count
    if len(script.optimizers.found) == 1 and steps and backwards % steps == 0:
        values["accumulation"] = backwards // steps
    return {name: value for name, value in values.items() if value is not None}


def mechanisms(script: Script) -> list[dict[str, Any]]:
    """The proof of each switch that was set from outside."""
    proofs = []
    for name, wanted in script.toggles.items():
        value, evidence = READ[name](script) if name in READ else (None, "cannot be set from outside")
        refused = script.refused.get(name)
        ok = not refused and (value == wanted or (name == "cpu_threads" and not wanted))
        proofs.append({"switch": name, "ok": ok, "evidence": refused or evidence})
    return proofs
