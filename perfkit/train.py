"""The training program: read by learners, measured step by step, exported as a plain script.

Each `recipe.NAME` is a switch of `perfkit.Recipe`, and each `workload.NAME` belongs to what is trained (the
protocol is in `perfkit/workloads/__init__.py`). Nothing else trains. The hooks for measuring it, and the code
that copies batches ahead, are in `program.py`.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from perfkit.program import Program, prefetched
from perfkit.recipe import Recipe

DTYPES = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}
IMPLEMENTATIONS: dict[str, dict[str, bool]] = {
    "default": {},
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
}


def train(
    recipe: Recipe, workload: Any, device: torch.device, seed: int = 0, program: Program | None = None
) -> Iterator[torch.Tensor]:
    """Train without end: the loss of each optimizer step, on the device."""
    program = program or Program()
    torch.manual_seed(seed)
    if recipe.fp32_precision != "default":
        torch.backends.cudnn.allow_tf32 = recipe.fp32_precision == "tf32"
        torch.set_float32_matmul_precision("high" if recipe.fp32_precision == "tf32" else "highest")
        torch.backends.cudnn.conv.fp32_precision = recipe.fp32_precision
        torch.backends.cudnn.rnn.fp32_precision = recipe.fp32_precision
    if recipe.cudnn_benchmark:
        torch.backends.cudnn.benchmark = True
    if recipe.cpu_threads > 0:
        torch.set_num_threads(recipe.cpu_threads)

    dataset = workload.dataset(recipe)
    loader: Any = DataLoader(
        dataset,
        batch_size=recipe.batch_size,
        sampler=RandomSampler(dataset, generator=torch.Generator().manual_seed(seed)),
        drop_last=True,  # every batch has the same shape: nothing recompiles, every step is the same work
        num_workers=recipe.workers,
        prefetch_factor=recipe.prefetch_factor if recipe.workers > 0 else None,
        persistent_workers=recipe.workers > 0,
        pin_memory=recipe.pin_memory,
    )

    model: Any = workload.model().to(device).train()
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if recipe.compile:
        model = torch.compile(model, mode=recipe.compile_mode)
    optimizer = workload.optimizer(model.parameters(), **IMPLEMENTATIONS[recipe.optimizer_impl])
    # Torch's own first scale, 65,536, overflows in some models: their first updates would be skipped.
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, enabled=recipe.amp == "fp16")
    program.built(loader, model, optimizer, scaler, device)
    batches = program.batches(loader)
    if recipe.device_prefetch:
        batches = prefetched(batches, device, program.part)
    if recipe.accumulation > 1:
        losses: list[torch.Tensor] = []
    for inputs, targets in batches:
        if not recipe.device_prefetch:
            with program.part("copy"):
                inputs = inputs.to(device, non_blocking=recipe.non_blocking)
                targets = targets.to(device, non_blocking=recipe.non_blocking)
        if hasattr(workload, "prepare"):
            inputs = workload.prepare(inputs, recipe)
        if recipe.channels_last:
            inputs = inputs.to(memory_format=torch.channels_last)
        with program.part("forward"):
            with torch.autocast(device.type, DTYPES[recipe.amp], enabled=recipe.amp != "off"):
                loss = workload.loss(model(inputs), targets)
        if recipe.accumulation > 1:
            loss = loss / recipe.accumulation
        with program.part("backward"):
            scaler.scale(loss).backward()
        if recipe.accumulation > 1:
            losses.append(loss.detach())
            if len(losses) < recipe.accumulation:
                continue  # the next batch adds its gradients
            loss = torch.stack(losses).sum()
            losses.clear()
        with program.part("optimizer"):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=recipe.zero_grad_set_to_none)
        yield loss.detach()
