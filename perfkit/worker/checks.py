"""Reads facts about the device and this process from torch, and checks whether each switch is in effect.

A switch is read from live objects and an observed step, never from the recipe. A `View` holds these, and its
method with the name of the switch reads it, for perfkit's own program and for scripts alike.
"""

import contextlib
import math
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import psutil
import torch

from perfkit.recipe import switches
from perfkit.results.schema import Mechanism
from perfkit.worker.messages import CompileCounters, DeviceFacts


def facts(device: torch.device) -> DeviceFacts:
    """The facts about a device."""
    if device.type != "cuda":
        return DeviceFacts()
    properties = torch.cuda.get_device_properties(device)
    return DeviceFacts(
        name=properties.name,
        uuid=f"GPU-{properties.uuid}",
        bf16=torch.version.hip is not None or properties.major >= 8,
    )


def is_tf32_supported(device: torch.device) -> bool:
    """Whether the device supports TF32: NVIDIA's from Ampere on, and some of AMD's."""
    if torch.version.hip or device.type != "cuda":
        return device.type == "cuda" and torch.cuda.is_tf32_supported()
    return torch.cuda.get_device_properties(device).major >= 8


def synchronize(device: torch.device) -> None:
    """Waits until the device has finished its work; a CPU always has."""
    if device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)


def compiled_graphs() -> int:
    """How many graphs torch.compile has made in this process: all that is asked in each step."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return 0 if dynamo is None else int(dynamo.counters["stats"]["unique_graphs"])


def compile_counters() -> CompileCounters:
    """What torch.compile has done in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return CompileCounters()
    counters = dynamo.counters
    return CompileCounters(
        graphs=compiled_graphs(),
        breaks=sum(counters["graph_break"].values()),
        cache_hits=counters["inductor"]["fxgraph_cache_hit"],
    )


def reset_peak(device: torch.device) -> None:
    """Resets the peak memory. Where that is impossible, as on macOS, it stays the peak of the process."""
    if device.type == "cuda":
        torch.accelerator.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_bytes(device: torch.device) -> tuple[int | None, int | None]:
    """Peak bytes since the reset: allocated and reserved on CUDA, this process on a CPU, else unknown."""
    if device.type == "cuda":
        return torch.accelerator.max_memory_allocated(device), torch.accelerator.max_memory_reserved(device)
    if device.type != "cpu":
        return None, None
    with contextlib.suppress(OSError, StopIteration), open("/proc/self/status") as file:
        return int(next(line for line in file if line.startswith("VmHWM")).split()[1]) * 1024, None
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): in bytes on macOS, in KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit, None


def bytes_per_sample(batch: Any) -> int:
    """The size of one sample of a batch in bytes, including its target."""
    return int(sum(part.nbytes for part in batch) // max(1, len(batch[0])))


def first_tensor(outputs: Any) -> Any:
    """The first tensor in a model's output."""
    while not isinstance(outputs, torch.Tensor):
        outputs = next(iter(outputs.values() if isinstance(outputs, Mapping) else outputs))
    return outputs


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a type without `torch.`."""
    return str(dtype).removeprefix("torch.")


FP32_PARTS: Any = (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn)
"""The parts that compute in float32 on a GPU: matrix products, convolutions, recurrent layers."""
TORCHS_OWN = [part.fp32_precision for part in FP32_PARTS]
"""Their precisions when torch was imported. The environment may have set them."""

Reading = tuple[Any, str]
"""The value of the recipe's switch (None if it is none of its values), and the evidence in words."""


@dataclass(frozen=True)
class View:
    """What was seen of a training in a step, and the switches as read from that.

    None means that something cannot be seen. The `iterator` is the loader's, with its worker processes.
    `batch` is the last batch as the loader returned it, `inputs` as the model received it. `outputs` is the
    first tensor that the model returned, and `autocast` is the type of the autocast around the model.
    """

    loader: Any = None
    iterator: Any = None
    model: Any = None
    device: torch.device = field(default=torch.device("cpu"))
    optimizer: Any = None
    scaler: Any = None
    batch: Any = None
    inputs: Any = None
    outputs: Any = None
    autocast: torch.dtype | None = None
    batches: int = 1
    updates: int = 0
    copies: list[dict[str, Any]] = field(default_factory=list)  # arguments of calls that copied batches
    copies_beside: bool = False  # whether they used other CUDA streams than the model
    first_graphs: int | None = None  # that torch.compile had made after the first step; none should follow

    def batch_size(self) -> Reading:
        sampler = getattr(self.loader, "batch_sampler", None)
        size = getattr(self.loader, "batch_size", None) or getattr(sampler, "batch_size", None)
        if self.batch is not None:
            size = len(self.batch[0])
        return size, f"samples in a batch: {size}"

    def workers(self) -> Reading:
        alive = sum(worker.is_alive() for worker in getattr(self.iterator, "_workers", ()))
        return alive, f"worker processes alive: {alive}"

    def prefetch_factor(self) -> Reading:
        factor = getattr(self.loader, "prefetch_factor", None)
        if factor is None:
            return switches()["prefetch_factor"].default, "no workers, nothing is prefetched"
        return factor, f"batches that each worker loads ahead: {factor}"

    def scaled_decode(self) -> Reading:
        from PIL import Image  # photos need both, so they are installed
        from torchvision.datasets import ImageFolder

        dataset = self.loader.dataset
        if not isinstance(dataset, ImageFolder):
            return False, "no photo is decoded"
        file = dataset.samples[0][0]
        with Image.open(file) as photo:
            full_size = photo.size
        decoded = dataset.loader(file)
        size = decoded.size if isinstance(decoded, Image.Image) else full_size
        is_smaller = math.prod(size) < math.prod(full_size)
        return is_smaller, f"a photo of {full_size[0]} × {full_size[1]} is decoded as {size[0]} × {size[1]}"

    def pin_memory(self) -> Reading:
        is_pinned = bool(self.loader.pin_memory if self.batch is None else self.batch[0].is_pinned())
        return is_pinned, f"batches lie in {'page-locked' if is_pinned else 'pageable'} memory"

    def non_blocking(self) -> Reading:
        on = bool(self.copies) and all(copy.get("non_blocking") for copy in self.copies)
        return on, "the copies do not wait" if on else "the host waits for each copy"

    def device_prefetch(self) -> Reading:
        """Copies and kernels overlap only on two streams and from pinned memory."""
        if not self.copies_beside:
            return False, "copied on the stream of the kernels"
        is_pinned, where = self.pin_memory()
        return is_pinned or None, f"the next batch is copied on its own stream; {where}"

    def uint8_copy(self) -> Reading:
        kind = dtype_name(self.batch[0].dtype)
        size = bytes_per_sample(self.batch[:1])
        return kind == "uint8", f"the batch is copied as {kind}: {size:,} bytes per sample"

    def device_resize(self) -> Reading:
        """Only an enlargement counts: a crop on the device is part of the workload, not of this switch."""
        copied = list(self.batch[0].shape[2:])
        received = list(self.inputs.shape[2:])
        is_enlarged = math.prod(copied) < math.prod(received)
        return is_enlarged, f"sides of an image: {copied} as it is copied, {received} as the model sees it"

    def zero_grad_set_to_none(self) -> Reading:
        are_none = not any(p.grad is not None for p in self.model.parameters() if p.requires_grad)
        return are_none, f"gradients are {'None' if are_none else 'zeroed'} after a step"

    def channels_last(self) -> Reading:
        parts = [p for p in self.model.parameters() if p.dim() == 4 and min(p.shape[1], p.shape[2]) > 1]
        if not parts:
            return False, "the model has no 4-dimensional weights"
        if isinstance(self.inputs, torch.Tensor) and self.inputs.dim() == 4:
            parts.append(self.inputs)
        is_nhwc = all(part.is_contiguous(memory_format=torch.channels_last) for part in parts)
        return is_nhwc, f"strides {list(parts[-1].stride())}: {'NHWC' if is_nhwc else 'NCHW'}"

    def amp(self) -> Reading:
        kinds = {torch.bfloat16: "bf16", torch.float16: "fp16"}
        if self.outputs is None:
            return None, "the model returns no tensor"
        dtype = self.outputs.dtype
        of_weights = next(self.model.parameters()).dtype
        evidence = f"logits are {dtype_name(dtype)}"
        if dtype == of_weights and self.autocast in kinds:
            dtype = self.autocast
            evidence += f", cast back from an autocast to {dtype_name(dtype)}"
        kind = "off" if dtype == of_weights else kinds.get(dtype)
        scales = self.scaler.is_enabled() if self.scaler else kind == "fp16"
        if self.scaler and scales:
            evidence += f", loss scaled by {self.scaler.get_scale():.0f}"
        return kind if scales == (kind == "fp16") else None, evidence

    def fp32_precision(self) -> Reading:
        settings = [part.fp32_precision for part in FP32_PARTS]
        value = None
        if settings == TORCHS_OWN:
            value = "default"
        elif len(set(settings)) == 1:
            value = settings[0]
        evidence = "fp32_precision: products {}, convolutions {}, recurrent layers {}".format(*settings)
        if value == "tf32" and self.device.type == "cuda" and not is_tf32_supported(self.device):
            return None, f"{evidence}; this GPU does not compute in TF32, whatever is set"
        return value, evidence

    def cudnn_benchmark(self) -> Reading:
        on = torch.backends.cudnn.benchmark
        return on, "cuDNN times its algorithms" if on else "cuDNN's heuristic choice"

    def optimizer_impl(self) -> Reading:
        if self.optimizer is None:
            return None, "no optimizer"
        group = self.optimizer.param_groups[0]
        state = "default"
        if group.get("fused"):
            state = "fused"
        elif group.get("foreach"):
            state = "foreach"
        elif group.get("foreach") is False:
            state = "loop"
        return state, f"{type(self.optimizer).__name__}: {state}"

    def compile(self) -> Reading:
        counters = compile_counters()
        if not counters.graphs:
            return False, "runs eagerly"
        recompiled = 0 if self.first_graphs is None else counters.graphs - self.first_graphs
        evidence = f"{counters.graphs} graph(s), {counters.breaks} break(s), {recompiled} recompilation(s)"
        return (None if recompiled else True), evidence

    def compile_mode(self) -> Reading:
        context = getattr(self.model, "dynamo_ctx", None)
        settings = getattr(context, "compiler_config", None) or {}
        state = "default"
        if settings.get("max_autotune"):
            state = "max-autotune"
        elif settings.get("triton.cudagraphs"):
            state = "reduce-overhead"
        return state, f"compiled in mode {state}" if context else "not compiled"

    def cpu_threads(self) -> Reading:
        threads = torch.get_num_threads()
        return threads, f"compute threads: {threads}"

    def accumulation(self) -> Reading:
        evidence = f"{self.batches} batch(es), {self.updates} optimizer step(s)"
        return self.batches if self.updates == 1 else None, evidence

    def wait_policy(self) -> Reading:
        policy = first_environment().get("OMP_WAIT_POLICY", "")
        value = {"": "default", "PASSIVE": "passive"}.get(policy.upper())
        return value, f"started with OMP_WAIT_POLICY={policy}" if policy else "threads wait as libgomp does"

    def allocator(self) -> Reading:
        names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_")
        settings = [f"{name}={value}" for name, value in first_environment().items() if name in names]
        evidence = f"started with {', '.join(settings)}" if settings else "the C library returns freed memory"
        return "keep" if settings else "default", evidence


AS_IT_IS = {"cpu_threads": 0, "wait_policy": "default", "allocator": "default"}
"""Values with which a recipe leaves a setting as it is in the user's environment."""


def verify(view: View, wanted: Mapping[str, Any]) -> list[Mechanism]:
    """Checks whether switches have the values that they should have."""
    proofs = []
    for switch, value in wanted.items():
        if switch == "non_blocking" and wanted.get("device_prefetch"):
            continue  # the prefetcher's own copies never block
        state, evidence = getattr(view, switch)()
        proofs.append(Mechanism(switch, state == value or AS_IT_IS.get(switch) == value, evidence))
    return proofs


def first_environment() -> dict[str, str]:
    """The environment that this process, or the zygote that forked it, was started with."""
    return psutil.Process().environ()
