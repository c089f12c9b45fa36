"""Whether each switch really acts: proven by the objects that were built, never by the recipe.

A stage whose mechanism is off is an error, not a slow stage.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.overrides import TorchFunctionMode

from perfkit.program import train
from perfkit.program.recipe import Recipe
from perfkit.program.train import DevicePrefetcher, Training, to_device
from perfkit.results.run import Mechanism
from perfkit.worker.messages import CompileCounters


@dataclass
class Specimen:
    """What a check may look at: the training, a batch of its loader, and one step taken with it."""

    training: Training
    batch: Any
    """As the loader hands it over."""
    inputs: torch.Tensor
    """As the model takes them."""
    outputs: torch.Tensor
    copies: list[dict[str, Any]]
    """Keyword arguments of the `Tensor.to` calls that brought the batch to the device."""
    optimizer_steps: int
    batches_pulled: int
    iterator: Any
    graphs: CompileCounters
    recompiles: int
    """Graphs made after the first step: there should be none."""
    spans: list[str]
    """Names of the ranges that the step opened."""
    block_computed: int
    """How often the first block of the model was computed; 0 where that cannot be counted."""
    no_syncs: int
    """How often the step kept the ranks from averaging gradients."""

    @property
    def recipe(self) -> Recipe:
        """The recipe that should be in force."""
        recipe: Recipe = self.training.recipe
        return recipe


Check = Callable[[Specimen], tuple[bool, str]]
_CHECKS: dict[str, Check] = {}


def _proves(name: str) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        _CHECKS[name] = check
        return check

    return register


def checks() -> dict[str, Check]:
    """The check of each switch, by the switch's name."""
    return dict(_CHECKS)


def inspect(specimen: Specimen) -> list[Mechanism]:
    """All checks, in the order of the recipe's declaration."""
    found = []
    for name in specimen.recipe.to_dict():
        ok, evidence = _CHECKS[name](specimen)
        found.append(Mechanism(name, ok, evidence))
    return found


class _Copies(TorchFunctionMode):
    """Writes down the keyword arguments of every `Tensor.to`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.to:
            self.seen.append(dict(kwargs or {}))
        return func(*args, **(kwargs or {}))


def specimen(training: Training, source: Any, iterator: Any = None, first_graphs: int = 0) -> Specimen:
    """Takes one optimizer step, watched.

    Args:
        training: what is to be proven.
        source: the endless host batches.
        iterator: the loader's own iterator, where it has worker processes.
        first_graphs: graphs that torch.compile had made after the first step.
    """
    pulled: list[Any] = []
    watch = _Watch(training)

    def watched() -> Any:
        for batch in source:
            pulled.append(batch)
            yield batch

    batches = training.batches(watched())
    with watch:
        training.step(batches)
    with _Copies() as copies:
        inputs, _ = to_device(pulled[-1], training.workload, training.recipe, training.device)
    # A device prefetcher is one batch ahead: that batch was pulled, but not yet trained on.
    ahead = 1 if isinstance(batches, DevicePrefetcher) else 0
    made = compile_counters()
    return Specimen(
        training=training, batch=pulled[-1], inputs=inputs, outputs=_first(watch.outputs),
        copies=copies.seen, optimizer_steps=watch.steps, batches_pulled=len(pulled) - ahead,
        iterator=iterator, graphs=made, recompiles=made.graphs - first_graphs, spans=watch.spans,
        block_computed=watch.computed, no_syncs=watch.no_syncs,
    )  # fmt: skip


class _Watch(contextlib.ExitStack):
    """Counts what happens inside one step: by hooks, and by standing in for functions of the program."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self._training = training
        self.outputs: Any = None
        self.steps = self.computed = self.no_syncs = 0
        self.spans: list[str] = []

    def __enter__(self) -> _Watch:
        super().__enter__()
        training = self._training
        hooks = [training.optimizer.register_step_post_hook(lambda *_: self._count("steps"))]
        if not training.recipe.compile:  # a hook would make torch.compile start anew
            block = train.blocks(plain(training.model))[0]
            leaf = next(part for part in block.modules() if not [*part.children()])
            hooks.append(leaf.register_forward_pre_hook(lambda *_: self._count("computed")))
        for hook in hooks:
            self.callback(hook.remove)
        self._stand_in(train, "forward", self._forward)
        self._stand_in(train, "span", self._span)
        self._stand_in(DistributedDataParallel, "no_sync", self._no_sync)
        return self

    def _stand_in(self, owner: Any, name: str, made: Callable[[Any], Any]) -> None:
        real = getattr(owner, name)
        setattr(owner, name, made(real))
        self.callback(setattr, owner, name, real)

    def _count(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)

    def _forward(self, real: Any) -> Any:
        def forward(*given: Any) -> Any:
            outputs, loss = real(*given)
            self.outputs = outputs
            return outputs, loss

        return forward

    def _span(self, real: Any) -> Any:
        def span(name: str) -> Any:
            self.spans.append(name)
            return real(name)

        return span

    def _no_sync(self, real: Any) -> Any:
        def no_sync(model: Any) -> Any:
            self._count("no_syncs")
            return real(model)

        return no_sync


def plain(model: Any) -> Any:
    """The workload's own module, inside of what compiles or distributes it."""
    model = getattr(model, "_orig_mod", model)
    return model.module if isinstance(model, DistributedDataParallel) else model


def _first(outputs: Any) -> torch.Tensor:
    """The logits: the output itself, or the first tensor of it."""
    while not isinstance(outputs, torch.Tensor):
        outputs = next(iter(outputs.values() if isinstance(outputs, dict) else outputs))
    return outputs


def compile_counters() -> CompileCounters:
    """What torch.compile has done in this process."""
    from torch._dynamo.utils import counters

    return CompileCounters(
        graphs=int(counters["stats"]["unique_graphs"]),
        breaks=int(sum(counters["graph_break"].values())),
        cache_hits=int(counters["inductor"]["fxgraph_cache_hit"]),
        cache_misses=int(counters["inductor"]["fxgraph_cache_miss"]),
    )


def is_compiled(model: Any) -> bool:
    """Whether torch.compile has wrapped the model."""
    return isinstance(model, torch._dynamo.eval_frame.OptimizedModule)


def is_resident(loader: Any) -> bool:
    """Whether the whole data set lies on the device; a script has a class of that name of its own."""
    return type(loader).__name__ == "ResidentLoader"


def bytes_per_sample(batch: Any) -> int:
    """Bytes a sample has in a batch, targets included."""
    tensors = [part for part in batch if isinstance(part, torch.Tensor)]
    return int(sum(tensor.nbytes for tensor in tensors)) // max(1, len(tensors[0]))


@_proves("batch_size")
def _batch_size(s: Specimen) -> tuple[bool, str]:
    return len(s.batch[0]) == s.recipe.batch_size, f"{len(s.batch[0])} samples in a batch"


@_proves("workers")
def _workers(s: Specimen) -> tuple[bool, str]:
    workers = getattr(s.iterator, "_workers", [])
    alive = sum(worker.is_alive() for worker in workers)
    said = f"{alive} worker processes alive" if alive else "data is fetched in the training process"
    return alive == s.recipe.workers, said


@_proves("persistent_workers")
def _persistent(s: Specimen) -> tuple[bool, str]:
    kept = bool(getattr(s.training.loader, "persistent_workers", False))
    same = getattr(s.training.loader, "_iterator", None) is not None
    kept = kept and same
    return (
        kept == s.recipe.persistent_workers,
        "workers outlive the epoch" if kept else "workers end with the epoch",
    )


@_proves("prefetch_factor")
def _prefetch(s: Specimen) -> tuple[bool, str]:
    factor = getattr(s.training.loader, "prefetch_factor", None)
    if not s.recipe.workers:
        return factor is None, "no workers, nothing is prefetched"
    outstanding = getattr(s.iterator, "_tasks_outstanding", None)
    return factor == s.recipe.prefetch_factor, f"{factor} batches a worker ahead, {outstanding} on order now"


@_proves("batched_fetch")
def _batched(s: Specimen) -> tuple[bool, str]:
    dataset = getattr(s.training.loader, "dataset", None)
    collate = getattr(getattr(s.training.loader, "collate_fn", None), "__name__", "")
    whole = hasattr(dataset, "__getitems__") and collate == "already_a_batch"
    return whole == s.recipe.batched_fetch, "a batch is one `__getitems__`" if whole else "a sample at a time"


@_proves("pin_memory")
def _pinned(s: Specimen) -> tuple[bool, str]:
    pinned = s.batch[0].device.type == "cpu" and s.batch[0].is_pinned()
    return (
        pinned == s.recipe.pin_memory,
        "the host batch is page-locked" if pinned else "the host batch is pageable",
    )


@_proves("non_blocking")
def _non_blocking(s: Specimen) -> tuple[bool, str]:
    asked = any(copy.get("non_blocking") for copy in s.copies)
    return (
        asked == s.recipe.non_blocking,
        "copied without waiting" if asked else "the host waits for the copy",
    )


@_proves("device_prefetch")
def _device_prefetch(s: Specimen) -> tuple[bool, str]:
    batches = s.training.batches(iter(()))
    beside = isinstance(batches, DevicePrefetcher)
    said = "the next batch is copied on a stream of its own" if beside else "copied when it is needed"
    return beside == s.recipe.device_prefetch, said


@_proves("uint8_copy")
def _uint8(s: Specimen) -> tuple[bool, str]:
    raw = s.batch[0].dtype == torch.uint8
    kind = str(s.batch[0].dtype).removeprefix("torch.")
    sent = bytes_per_sample(s.batch[:1])
    return raw == s.recipe.uint8_copy, f"batch is {kind} on the wire: {sent:,} bytes a sample"


@_proves("device_resize")
def _resize(s: Specimen) -> tuple[bool, str]:
    sent, seen = tuple(s.batch[0].shape[2:]), tuple(s.inputs.shape[2:])
    smaller = sent < seen  # a crop on the device is a workload's own affair
    shown = "×".join(map(str, sent)) or "no image"
    said = f"sent as {shown}, enlarged on the device" if smaller else f"sent as the model sees it ({shown})"
    return smaller == s.recipe.device_resize, said


@_proves("device_dataset")
def _resident(s: Specimen) -> tuple[bool, str]:
    resident = is_resident(s.training.loader)
    there = s.batch[0].device.type == s.training.device.type
    said = f"the data set lies on {s.batch[0].device}" if resident else "batches come from a loader"
    return resident == s.recipe.device_dataset and (there or not resident), said


@_proves("zero_grad_set_to_none")
def _to_none(s: Specimen) -> tuple[bool, str]:
    for parameter in s.training.model.parameters():
        if parameter.requires_grad:
            gone = parameter.grad is None
            return (
                gone == s.recipe.zero_grad_set_to_none,
                "gradients are None after a step" if gone else "gradients are zeroed",
            )
    return False, "the model has no parameters"


@_proves("channels_last")
def _channels_last(s: Specimen) -> tuple[bool, str]:
    weights = [p for p in s.training.model.parameters() if p.dim() == 4 and min(p.shape[1], p.shape[2]) > 1]
    tensors = [*weights, *([s.inputs] if s.inputs.dim() == 4 else [])]
    last = bool(tensors) and all(t.is_contiguous(memory_format=torch.channels_last) for t in tensors)
    shown = f"strides of the input {tuple(s.inputs.stride())}" if s.inputs.dim() == 4 else "no image input"
    return last == s.recipe.channels_last, f"{shown}: {'NHWC' if last else 'NCHW'}"


@_proves("amp")
def _amp(s: Specimen) -> tuple[bool, str]:
    plain = next(s.training.model.parameters()).dtype
    wanted = {"off": plain, "bf16": torch.bfloat16, "fp16": torch.float16}[s.recipe.amp]
    scaler = getattr(s.training, "scaler", None)
    scaled = scaler is not None and scaler.is_enabled()
    kind = str(s.outputs.dtype).removeprefix("torch.")
    said = f"logits are {kind}" + (f", loss scaled by {scaler.get_scale():.0f}" if scaler is not None else "")
    return s.outputs.dtype == wanted and scaled == (s.recipe.amp == "fp16"), said


@_proves("tf32")
def _tf32(s: Specimen) -> tuple[bool, str]:
    on = torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    off = not torch.backends.cuda.matmul.allow_tf32 and not torch.backends.cudnn.allow_tf32
    return (on if s.recipe.tf32 else off), f"float32 is computed in {'TF32' if on else 'full precision'}"


@_proves("cudnn_benchmark")
def _benchmark(s: Specimen) -> tuple[bool, str]:
    on = torch.backends.cudnn.benchmark
    return on == s.recipe.cudnn_benchmark, "cuDNN searches" if on else "cuDNN's heuristic choice"


@_proves("optimizer_impl")
def _optimizer(s: Specimen) -> tuple[bool, str]:
    group = s.training.optimizer.param_groups[0]
    fused, foreach = group.get("fused"), group.get("foreach")
    is_loop = not fused and foreach is False
    real = "fused" if fused else "foreach" if foreach else "loop" if is_loop else "default"
    return real == s.recipe.optimizer_impl, f"optimizer implementation: {real}"


@_proves("compile")
def _compiled(s: Specimen) -> tuple[bool, str]:
    if not is_compiled(s.training.model):
        return not s.recipe.compile, "runs eagerly"
    made = s.graphs
    said = f"{made.graphs} graph(s), {made.breaks} break(s), {s.recompiles} recompilation(s)"
    return s.recipe.compile and made.graphs > 0 and s.recompiles == 0, said


@_proves("compile_mode")
def _mode(s: Specimen) -> tuple[bool, str]:
    context = getattr(s.training.model, "dynamo_ctx", None)
    if context is None:
        return not s.recipe.compile, "not compiled"
    settings = context.compiler_config or {}
    autotune, cudagraphs = settings.get("max_autotune"), settings.get("triton.cudagraphs")
    real = "max-autotune" if autotune else "reduce-overhead" if cudagraphs else "default"
    return real == s.recipe.compile_mode, f"compiled in mode {real}"


@_proves("cpu_threads")
def _threads(s: Specimen) -> tuple[bool, str]:
    real = torch.get_num_threads()
    return s.recipe.cpu_threads in (0, real), f"{real} compute threads"


@_proves("accumulation")
def _accumulated(s: Specimen) -> tuple[bool, str]:
    said = f"{s.batches_pulled} batch(es), {s.optimizer_steps} optimizer step"
    return s.batches_pulled == s.recipe.accumulation and s.optimizer_steps == 1, said


@_proves("activation_checkpointing")
def _checkpointed(s: Specimen) -> tuple[bool, str]:
    times = s.block_computed / s.recipe.accumulation
    if not times:
        return (
            not s.recipe.activation_checkpointing,
            "compiled: what backward computes again is the compiler's choice",
        )
    return (times == 2) == s.recipe.activation_checkpointing, f"a block is computed {times:g}x a batch"


@_proves("embedding_device")
def _placed(s: Specimen) -> tuple[bool, str]:
    kinds = (nn.Embedding, nn.EmbeddingBag)
    tables = [m.weight for m in plain(s.training.model).modules() if isinstance(m, kinds)]
    where = sorted({table.device.type for table in tables})
    away = bool(tables) and where == ["cpu"] and s.training.device.type != "cpu"
    return away == (s.recipe.embedding_device == "cpu"), f"embeddings lie on {', '.join(where) or 'none'}"


@_proves("log_every")
def _logged(s: Specimen) -> tuple[bool, str]:
    every = s.recipe.log_every
    if not hasattr(s.training, "shown"):
        return every == 0, "the loss is not read in the loop"
    read, steps = len(s.training.shown), s.training.steps
    return every > 0 and read == steps // every, f"the loss was read {read}x in {steps} steps"


@_proves("nvtx_ranges")
def _named(s: Specimen) -> tuple[bool, str]:
    names = list(dict.fromkeys(s.spans))
    wanted = {"step", "data", "copy", "forward", "backward", "optimizer"}
    whole = set(names) >= (wanted - {"copy"} if s.recipe.device_prefetch else wanted)
    return (whole if s.recipe.nvtx_ranges else not names), f"ranges: {', '.join(names) or 'none'}"


def _ddp(s: Specimen) -> DistributedDataParallel | None:
    model = getattr(s.training.model, "_orig_mod", s.training.model)
    return model if isinstance(model, DistributedDataParallel) else None


@_proves("ranks")
def _ranks(s: Specimen) -> tuple[bool, str]:
    if _ddp(s) is None:
        return s.recipe.ranks == 1, "one process trains"
    size = distributed.get_world_size()
    return size == s.recipe.ranks, f"{size} ranks by {distributed.get_backend()}, in DistributedDataParallel"


@_proves("no_sync")
def _no_sync(s: Specimen) -> tuple[bool, str]:
    said = "gradients are averaged with the last batch only" if s.no_syncs else "with every batch"
    return (s.no_syncs == 1) == s.recipe.no_sync, said


@_proves("bucket_cap_mb")
def _buckets(s: Specimen) -> tuple[bool, str]:
    ddp = _ddp(s)
    if ddp is None:
        return True, "no other ranks"
    size = ddp.bucket_bytes_cap >> 20
    return size == s.recipe.bucket_cap_mb, f"buckets of at most {size} MiB"


@_proves("gradient_as_bucket_view")
def _views(s: Specimen) -> tuple[bool, str]:
    ddp = _ddp(s)
    on = ddp is not None and ddp.gradient_as_bucket_view
    return (
        on == s.recipe.gradient_as_bucket_view,
        "gradients are views of buckets" if on else "gradients are tensors of their own",
    )


@_proves("static_graph")
def _static(s: Specimen) -> tuple[bool, str]:
    ddp = _ddp(s)
    on = ddp is not None and bool(ddp.static_graph)
    return on == s.recipe.static_graph, "static graph" if on else "the graph may change from step to step"


@_proves("infiniband")
def _rdma(s: Specimen) -> tuple[bool, str]:
    if _ddp(s) is None:
        return True, "no other ranks"
    refused = os.environ.get("NCCL_IB_DISABLE") == "1"
    return (
        refused != s.recipe.infiniband,
        "NCCL_IB_DISABLE=1: TCP" if refused else "NCCL takes the fastest network",
    )


@_proves("gradient_compression")
def _compressed(s: Specimen) -> tuple[bool, str]:
    ddp = _ddp(s)
    hooks = [hook.__name__ for hook, _ in ddp._comm_hooks] if ddp is not None else []
    wanted = (
        [] if s.recipe.gradient_compression == "off" else [f"{s.recipe.gradient_compression}_compress_hook"]
    )
    return hooks == wanted, f"communication hook: {', '.join(hooks) or 'none'}"
