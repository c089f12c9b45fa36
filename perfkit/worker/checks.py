"""Whether each switch is in effect, read from live objects and an observed step, never from the recipe.

`READERS` has one reader for each switch, for perfkit's own program and for scripts alike.
"""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from perfkit.results.run import Mechanism
from perfkit.worker.messages import CompileCounters

Reading = tuple[Any, str]
"""The value in the terms of the recipe's switch, None if it is neither, and the evidence in words."""


@dataclass
class View:
    """What a training shows of itself in a step. Whatever is None cannot be seen."""

    device: torch.device
    loader: Any = None
    iterator: Any = None
    """The loader's, with its worker processes."""
    model: Any = None
    optimizer: Any = None
    scaler: Any = None
    batch: Any = None
    """The last one, as the loader gave it."""
    inputs: Any = None
    """As the model took them."""
    outputs: Any = None
    """The first tensor that the model gave."""
    autocast: torch.dtype | None = None
    """The type of the autocast around the model, where there is one."""
    batches: int = 1
    updates: int = 0
    """Optimizer steps."""
    set_to_none: bool | None = None
    """How gradients are cleared, where the call was seen."""
    copies: list[dict[str, Any]] = field(default_factory=list)
    """Keyword arguments of the calls that copied batches to the device."""
    copy_streams: list[int | None] = field(default_factory=list)
    """The CUDA stream that was current in each copy."""
    compute_stream: int | None = None
    prefetches: bool = False
    """Whether batches are copied one ahead."""
    averaged: list[bool] = field(default_factory=list)
    """For each backward pass: whether the ranks averaged their gradients."""
    block_calls: int = 0
    """How often the first block of the model was computed; 0 where that cannot be counted."""
    graphs: CompileCounters = field(default_factory=CompileCounters)
    recompiles: int = 0
    """Graphs that were compiled after the first step: there should be none."""


AS_IT_IS = {"cpu_threads": 0, "wait_policy": "default", "allocator": "default"}
"""Values by which a recipe leaves a setting as the user's environment has it, whatever that is."""


def verify(view: View, wanted: Mapping[str, Any]) -> list[Mechanism]:
    """Whether switches have the values that they should have."""
    proofs = []
    for switch, value in wanted.items():
        state, evidence = READERS[switch](view)
        proofs.append(Mechanism(switch, state == value or AS_IT_IS.get(switch) == value, evidence))
    return proofs


def bytes_per_sample(batch: Any) -> int:
    """Bytes of a sample in a batch, targets included."""
    tensors = [part for part in batch if isinstance(part, torch.Tensor)]
    return sum(tensor.nbytes for tensor in tensors) // max(1, len(tensors[0]))


def first_tensor(outputs: Any) -> Any:
    """The first tensor of what a model gives."""
    while not isinstance(outputs, torch.Tensor):
        outputs = next(iter(outputs.values() if isinstance(outputs, Mapping) else outputs))
    return outputs


def autocast_dtype(device: torch.device) -> torch.dtype | None:
    """The type of the autocast that is on now; None if it is off."""
    on = torch.is_autocast_enabled(device.type)
    return torch.get_autocast_dtype(device.type) if on else None


def shown(dtype: torch.dtype) -> str:
    """A type without `torch.`."""
    return str(dtype).removeprefix("torch.")


# ---------------------------------------------------------------- data


def _batch_size(view: View) -> Reading:
    if view.batch is not None and isinstance(view.batch[0], torch.Tensor):
        size: int | None = len(view.batch[0])
    else:
        sampler = getattr(view.loader, "batch_sampler", None)
        size = getattr(view.loader, "batch_size", None) or getattr(sampler, "batch_size", None)
    return size, f"{size} samples in a batch" if size else "no batch size to read"


def _workers(view: View) -> Reading:
    if view.loader is None:
        return None, "no DataLoader"
    alive = sum(worker.is_alive() for worker in getattr(view.iterator, "_workers", ()))
    names = f"{alive} worker process{'es' if alive > 1 else ''} alive"
    return alive, names if alive else "data is fetched in the training process"


def _prefetch_factor(view: View) -> Reading:
    factor = getattr(view.loader, "prefetch_factor", None)
    if factor is None:
        return DEFAULT_PREFETCH, "no workers, nothing is prefetched"
    outstanding = getattr(view.iterator, "_tasks_outstanding", None)
    return factor, f"{factor} batches a worker ahead, {outstanding} requested now"


def _batched_fetch(view: View) -> Reading:
    collate = getattr(getattr(view.loader, "collate_fn", None), "__name__", "")
    dataset = getattr(view.loader, "dataset", None)
    on = hasattr(dataset, "__getitems__") and collate == "default_convert"
    return on, "a batch is one `__getitems__`" if on else "one sample at a time"


def _pin_memory(view: View) -> Reading:
    pinned = bool(view.batch[0].is_pinned() if view.batch is not None else view.loader.pin_memory)
    return pinned, f"batches lie in {'page-locked' if pinned else 'pageable'} memory"


def _non_blocking(view: View) -> Reading:
    on = bool(view.copies) and all(copy.get("non_blocking") for copy in view.copies)
    return on, "the copies do not wait" if on else "the host waits for each copy"


def _device_prefetch(view: View) -> Reading:
    """Copy and kernels overlap only on two streams and from pinned memory."""
    if not view.prefetches:
        return False, "copied when it is needed"
    apart = bool(view.copy_streams) and view.compute_stream not in view.copy_streams
    pinned = view.batch[0].is_pinned()
    stream = "a stream of its own" if apart else "the stream of the kernels"
    memory = "pinned" if pinned else "pageable"
    return (apart and pinned) or None, f"the next batch is copied on {stream}, from {memory} memory"


def _uint8_copy(view: View) -> Reading:
    kind, size = shown(view.batch[0].dtype), bytes_per_sample(view.batch[:1])
    return kind == "uint8", f"the batch is copied as {kind}: {size:,} bytes per sample"


def _device_resize(view: View) -> Reading:
    """Only an enlargement counts: a crop on the device is a workload's own affair."""
    sent, seen = tuple(view.batch[0].shape[2:]), tuple(view.inputs.shape[2:])
    size = "×".join(map(str, sent)) or "no image"
    on = sent < seen
    return on, f"copied as {size}, enlarged on the device" if on else f"copied as the model sees it ({size})"


# ---------------------------------------------------------------- computing


def _zero_grad_set_to_none(view: View) -> Reading:
    if view.set_to_none is not None:
        return view.set_to_none, f"zero_grad(set_to_none={view.set_to_none})"
    gradients = [p.grad for p in view.model.parameters() if p.requires_grad]
    if not gradients:
        return None, "the model has no parameters that are trained"
    none = gradients[0] is None
    return none, "gradients are None after a step" if none else "gradients are zeroed"


def _channels_last(view: View) -> Reading:
    weights = [p for p in view.model.parameters() if p.dim() == 4 and min(p.shape[1], p.shape[2]) > 1]
    if not weights:
        return False, "the model has no 4-dimensional weights"
    images = [view.inputs] if isinstance(view.inputs, torch.Tensor) and view.inputs.dim() == 4 else []
    last = all(part.is_contiguous(memory_format=torch.channels_last) for part in weights + images)
    what = f"strides of the input {images[0].stride()}" if images else f"{len(weights)} weights"
    return last, f"{what}: {'NHWC' if last else 'NCHW'}"


def _amp(view: View) -> Reading:
    kinds = {torch.bfloat16: "bf16", torch.float16: "fp16"}
    if view.outputs is None:
        return None, "the model gives no tensor"
    parameters = next(view.model.parameters()).dtype
    dtype = view.outputs.dtype
    evidence = f"logits are {shown(dtype)}"
    if dtype == parameters and view.autocast in kinds:
        dtype = view.autocast
        evidence += f", cast back from an autocast to {shown(dtype)}"
    kind = "off" if dtype == parameters else kinds.get(dtype)
    if view.scaler is None:
        return kind, evidence
    scaled = view.scaler.is_enabled()
    if scaled:
        evidence += f", loss scaled by {view.scaler.get_scale():.0f}"
    return (kind if scaled == (kind == "fp16") else None), evidence


def fp32_precision() -> tuple[str, str, str]:
    """How a GPU computes in float32: matrix products, convolutions, recurrent layers."""
    cudnn = torch.backends.cudnn
    return torch.backends.cuda.matmul.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision


TORCHS_OWN = fp32_precision()
"""As torch starts; the environment may have set it."""


def _fp32_precision(view: View) -> Reading:
    settings = fp32_precision()
    products, convolutions = ("TF32" if part == "tf32" else "full precision" for part in settings[:2])
    value = "default" if settings == TORCHS_OWN else settings[0] if len(set(settings)) == 1 else None
    where = "on a GPU, float32 products are computed in"
    return value, f"{where} {products}, convolutions in {convolutions}"


def _cudnn_benchmark(view: View) -> Reading:
    on = torch.backends.cudnn.benchmark
    return on, "cuDNN times its algorithms" if on else "cuDNN's heuristic choice"


def _optimizer_impl(view: View) -> Reading:
    if view.optimizer is None:
        return None, "no optimizer"
    group = view.optimizer.param_groups[0]
    fused, foreach = group.get("fused"), group.get("foreach")
    state = "fused" if fused else "foreach" if foreach else "loop" if foreach is False else "default"
    return state, f"{type(view.optimizer).__name__}: {state}"


def _compile(view: View) -> Reading:
    if not view.graphs.graphs:
        return False, "runs eagerly"
    evidence = (
        f"{view.graphs.graphs} graph(s), {view.graphs.breaks} break(s), {view.recompiles} recompilation(s)"
    )
    return (None if view.recompiles else True), evidence


def _compile_mode(view: View) -> Reading:
    context = getattr(view.model, "dynamo_ctx", None)
    settings = getattr(context, "compiler_config", None) or {}
    autotune, cudagraphs = settings.get("max_autotune"), settings.get("triton.cudagraphs")
    state = "max-autotune" if autotune else "reduce-overhead" if cudagraphs else "default"
    return state, f"compiled in mode {state}" if context else "not compiled"


def _activation_checkpointing(view: View) -> Reading:
    if not view.block_calls:
        return False, "compiled: the compiler chooses what backward computes again"
    times = view.block_calls / max(1, view.batches)
    return (times == 2 if times in (1, 2) else None), f"a block is computed {times:g}x per batch"


def _accumulation(view: View) -> Reading:
    evidence = f"{view.batches} batch(es), {view.updates} optimizer step(s)"
    return view.batches if view.updates == 1 else None, evidence


# ---------------------------------------------------------------- ranks and environment


def _ranks(view: View) -> Reading:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return 1, "one process trains"
    model = getattr(view.model, "_orig_mod", view.model)
    if not isinstance(model, nn.parallel.DistributedDataParallel):
        return None, "the model is not in DistributedDataParallel"
    size = distributed.get_world_size()
    return size, f"{size} ranks by {distributed.get_backend()}, in DistributedDataParallel"


def _no_sync(view: View) -> Reading:
    if all(view.averaged):
        return False, "gradients are averaged with every batch"
    last_only = view.averaged[-1] and not any(view.averaged[:-1])
    return last_only or None, "gradients are averaged with the last batch only"


def _wait_policy(view: View) -> Reading:
    policy = first_environment().get("OMP_WAIT_POLICY", "")
    value = {"": "default", "PASSIVE": "passive"}.get(policy.upper())
    return value, f"started with OMP_WAIT_POLICY={policy}" if policy else "threads wait as libgomp chooses"


def _allocator(view: View) -> Reading:
    settings = first_environment()
    keeps = [f"{name}={value}" for name, value in settings.items() if name in KEEPING]
    evidence = f"started with {', '.join(keeps)}" if keeps else "the C library returns memory as it chooses"
    return "keep" if keeps else "default", evidence


def first_environment() -> dict[str, str]:
    """The variables that this process, or the server that forked it, was started with."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = [part.decode(errors="replace").partition("=") for part in file.read().split(b"\0")]
        return {name: value for name, equals, value in pairs if equals}
    except OSError:  # not Linux
        return dict(os.environ)


KEEPING = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_")
DEFAULT_PREFETCH = 2
READERS: dict[str, Callable[[View], Reading]] = {
    "batch_size": _batch_size,
    "workers": _workers,
    "prefetch_factor": _prefetch_factor,
    "batched_fetch": _batched_fetch,
    "pin_memory": _pin_memory,
    "non_blocking": _non_blocking,
    "device_prefetch": _device_prefetch,
    "uint8_copy": _uint8_copy,
    "device_resize": _device_resize,
    "zero_grad_set_to_none": _zero_grad_set_to_none,
    "channels_last": _channels_last,
    "amp": _amp,
    "fp32_precision": _fp32_precision,
    "cudnn_benchmark": _cudnn_benchmark,
    "optimizer_impl": _optimizer_impl,
    "compile": _compile,
    "compile_mode": _compile_mode,
    "cpu_threads": lambda view: (torch.get_num_threads(), f"{torch.get_num_threads()} compute threads"),
    "accumulation": _accumulation,
    "activation_checkpointing": _activation_checkpointing,
    "ranks": _ranks,
    "no_sync": _no_sync,
    "wait_policy": _wait_policy,
    "allocator": _allocator,
}
"""The reader of each switch."""
