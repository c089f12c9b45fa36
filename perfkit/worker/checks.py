"""Whether each switch is in effect, read from what was built and from an observed step, not from the recipe.

`CHECKS` is a table: for each switch, what is observed and how it reads in words. A stage with a switch that
is not in effect is an error, not a slow stage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import distributed

from perfkit.results.run import Mechanism
from perfkit.worker.observe import ObservedStep, is_compiled

Reading = tuple[Any, str]
"""The observed state, in the terms of the recipe's switch, and the evidence in words."""
Check = Callable[[ObservedStep], Reading]

_AS_IT_SHOULD_BE, _NOT_AS_IT_SHOULD_BE = object(), object()
"""States of what cannot be read in the recipe's terms."""


def verify(step: ObservedStep, switches: Collection[str] | None = None) -> list[Mechanism]:
    """The checks of these switches, all of them if None, in the order of the recipe's declaration."""
    mechanisms = []
    for switch, wanted in step.recipe.to_dict().items():
        if switches is not None and switch not in switches:
            continue
        state, evidence = CHECKS[switch](step)
        mechanisms.append(Mechanism(switch, state is _AS_IT_SHOULD_BE or state == wanted, evidence))
    return mechanisms


def bytes_per_sample(batch: Any) -> int:
    """Bytes a sample has in a batch, targets included."""
    tensors = [part for part in batch if isinstance(part, torch.Tensor)]
    return int(sum(tensor.nbytes for tensor in tensors)) // max(1, len(tensors[0]))


def _flag(on: bool, yes: str, no: str) -> Reading:
    return on, yes if on else no


def _holds(ok: bool, evidence: str) -> Reading:
    return _AS_IT_SHOULD_BE if ok else _NOT_AS_IT_SHOULD_BE, evidence


# ---------------------------------------------------------------- data


def _workers(s: ObservedStep) -> Reading:
    alive = sum(worker.is_alive() for worker in getattr(s.iterator, "_workers", []))
    found = f"{alive} worker process{'es' if alive > 1 else ''} alive"
    return alive, found if alive else "data is fetched in the training process"


def _prefetch_factor(s: ObservedStep) -> Reading:
    factor = getattr(s.training.loader, "prefetch_factor", None)
    if not s.recipe.workers:
        return _holds(factor is None, "no workers, nothing is prefetched")
    outstanding = getattr(s.iterator, "_tasks_outstanding", None)
    return factor, f"{factor} batches a worker ahead, {outstanding} requested now"


def _batched_fetch(s: ObservedStep) -> Reading:
    collate = getattr(getattr(s.training.loader, "collate_fn", None), "__name__", "")
    whole = hasattr(getattr(s.training.loader, "dataset", None), "__getitems__")
    return _flag(
        whole and collate == "already_a_batch", "a batch is one `__getitems__`", "one sample at a time"
    )


def _uint8_copy(s: ObservedStep) -> Reading:
    kind = str(s.batch[0].dtype).removeprefix("torch.")
    size = bytes_per_sample(s.batch[:1])
    return kind == "uint8", f"the batch is copied as {kind}: {size:,} bytes per sample"


def _device_resize(s: ObservedStep) -> Reading:
    sent, seen = tuple(s.batch[0].shape[2:]), tuple(s.inputs.shape[2:])
    shown = "×".join(map(str, sent)) or "no image"
    # Only an enlargement counts: a crop on the device is a workload's own affair.
    return _flag(
        sent < seen, f"copied as {shown}, enlarged on the device", f"copied as the model sees it ({shown})"
    )


def _device_prefetch(s: ObservedStep) -> Reading:
    """Copy and kernels overlap only on two streams and from pinned memory; `record_stream` makes it safe."""
    if not s.prefetches:
        return False, "copied when it is needed"
    apart = bool(s.copy_streams) and s.compute_stream not in s.copy_streams
    stream = "a stream of its own" if apart else "the stream of the kernels"
    pinned = s.batch[0].is_pinned()
    memory = "pinned" if pinned else "pageable"
    evidence = f"the next batch is copied on {stream}, from {memory} memory; {s.recorded} tensors recorded"
    return (apart and pinned and s.recorded >= 2) or _NOT_AS_IT_SHOULD_BE, evidence


# ---------------------------------------------------------------- computing


def _zero_grad_set_to_none(s: ObservedStep) -> Reading:
    gradients = [p.grad for p in s.training.model.parameters() if p.requires_grad]
    if not gradients:
        return _holds(False, "the model has no parameters")
    return _flag(gradients[0] is None, "gradients are None after a step", "gradients are zeroed")


def _channels_last(s: ObservedStep) -> Reading:
    weights = [p for p in s.training.model.parameters() if p.dim() == 4 and min(p.shape[1], p.shape[2]) > 1]
    image = s.inputs.dim() == 4
    tensors = [*weights, *([s.inputs] if image else [])]
    last = bool(tensors) and all(t.is_contiguous(memory_format=torch.channels_last) for t in tensors)
    shown = f"strides of the input {tuple(s.inputs.stride())}" if image else "no image input"
    return last, f"{shown}: {'NHWC' if last else 'NCHW'}"


def _amp(s: ObservedStep) -> Reading:
    parameters = next(s.training.model.parameters()).dtype
    expected = {"off": parameters, "bf16": torch.bfloat16, "fp16": torch.float16}[s.recipe.amp]
    scaler = getattr(s.training, "scaler", None)
    scaled = scaler is not None and scaler.is_enabled()
    evidence = f"logits are {str(s.outputs.dtype).removeprefix('torch.')}"
    evidence += f", loss scaled by {scaler.get_scale():.0f}" if scaler is not None else ""
    return _holds(s.outputs.dtype == expected and scaled == (s.recipe.amp == "fp16"), evidence)


def fp32_precision() -> tuple[str, str, str]:
    """How a GPU computes in float32: matrix products, convolutions, recurrent layers."""
    cudnn = torch.backends.cudnn
    return torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision


_TORCHS_OWN = fp32_precision()
"""As torch starts; the environment may have set it."""


def _fp32_precision(s: ObservedStep) -> Reading:
    wanted, settings = s.recipe.fp32_precision, fp32_precision()
    products, convolutions = ("TF32" if part == "tf32" else "full precision" for part in settings[:2])
    return _holds(
        settings == (_TORCHS_OWN if wanted == "default" else (wanted,) * 3),
        f"on a GPU, float32 products are computed in {products}, convolutions in {convolutions}",
    )


def _optimizer_impl(s: ObservedStep) -> Reading:
    group = s.training.optimizer.param_groups[0]
    fused, foreach = group.get("fused"), group.get("foreach")
    state = "fused" if fused else "foreach" if foreach else "loop" if foreach is False else "default"
    return state, f"optimizer implementation: {state}"


def _compile(s: ObservedStep) -> Reading:
    if not is_compiled(s.training.model):
        return False, "runs eagerly"
    ok = s.counters.graphs > 0 and s.recompiles == 0
    evidence = f"{s.counters.graphs} graph(s), {s.counters.breaks} break(s), {s.recompiles} recompilation(s)"
    return ok or _NOT_AS_IT_SHOULD_BE, evidence


def _compile_mode(s: ObservedStep) -> Reading:
    context = getattr(s.training.model, "dynamo_ctx", None)
    if context is None:
        return _holds(not s.recipe.compile, "not compiled")
    settings = context.compiler_config or {}
    autotune, cudagraphs = settings.get("max_autotune"), settings.get("triton.cudagraphs")
    state = "max-autotune" if autotune else "reduce-overhead" if cudagraphs else "default"
    return state, f"compiled in mode {state}"


def _activation_checkpointing(s: ObservedStep) -> Reading:
    if not s.block_calls:
        evidence = "compiled: the compiler chooses what backward computes again"
        return _holds(not s.recipe.activation_checkpointing, evidence)
    times = s.block_calls / s.recipe.accumulation
    return times == 2, f"a block is computed {times:g}x per batch"


# ---------------------------------------------------------------- ranks


def _ranks(s: ObservedStep) -> Reading:
    if s.ddp is None:
        return 1, "one process trains"
    size = distributed.get_world_size()
    return size, f"{size} ranks by {distributed.get_backend()}, in DistributedDataParallel"


def _no_sync(s: ObservedStep) -> Reading:
    if all(s.averaged):
        return False, "gradients are averaged with every batch"
    last_only = s.averaged[-1] and not any(s.averaged[:-1])
    return last_only or _NOT_AS_IT_SHOULD_BE, "gradients are averaged with the last batch only"


# ---------------------------------------------------------------- the table

CHECKS: dict[str, Check] = {
    "batch_size": lambda s: (len(s.batch[0]), f"{len(s.batch[0])} samples in a batch"),
    "workers": _workers,
    "prefetch_factor": _prefetch_factor,
    "batched_fetch": _batched_fetch,
    "pin_memory": lambda s: _flag(
        s.batch[0].device.type == "cpu" and s.batch[0].is_pinned(),
        "the host batch is page-locked", "the host batch is pageable",
    ),
    "non_blocking": lambda s: _flag(
        any(copy.get("non_blocking") for copy in s.copies),
        "copied without waiting", "the host waits for the copy",
    ),
    "device_prefetch": _device_prefetch,
    "uint8_copy": _uint8_copy,
    "device_resize": _device_resize,
    "zero_grad_set_to_none": _zero_grad_set_to_none,
    "channels_last": _channels_last,
    "amp": _amp,
    "fp32_precision": _fp32_precision,
    "cudnn_benchmark": lambda s: _flag(
        torch.backends.cudnn.benchmark, "cuDNN times algorithms", "cuDNN's heuristic choice"
    ),
    "optimizer_impl": _optimizer_impl,
    "compile": _compile,
    "compile_mode": _compile_mode,
    "cpu_threads": lambda s: _holds(
        s.recipe.cpu_threads in (0, torch.get_num_threads()), f"{torch.get_num_threads()} compute threads"
    ),
    "accumulation": lambda s: (
        s.batches_pulled if s.optimizer_steps == 1 else _NOT_AS_IT_SHOULD_BE,
        f"{s.batches_pulled} batch(es), {s.optimizer_steps} optimizer step(s)",
    ),
    "activation_checkpointing": _activation_checkpointing,
    "ranks": _ranks,
    "no_sync": _no_sync,
}  # fmt: skip
"""The check of each switch: what is observed, and how it reads in words."""
