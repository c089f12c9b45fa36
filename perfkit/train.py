"""The training program: a plain PyTorch script with every switch in its place.

This file is what learners read, what the harness measures and what `perfkit export` writes out, with the
branches of one recipe left in. Nothing else trains. Every `recipe.…` below is a switch of `perfkit.Recipe`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from perfkit.recipe import Recipe
from perfkit.workloads import load


def configure(recipe: Recipe, seed: int) -> None:
    """Process-wide settings, before anything is built."""
    torch.manual_seed(seed)
    torch.backends.cuda.matmul.allow_tf32 = recipe.tf32
    torch.backends.cudnn.allow_tf32 = recipe.tf32
    torch.backends.cudnn.benchmark = recipe.cudnn_benchmark
    if recipe.cpu_threads > 0:
        torch.set_num_threads(recipe.cpu_threads)


def make_loader(workload: Any, recipe: Recipe, device: torch.device, seed: int) -> Iterable[Any]:
    """Batches of (inputs, targets), in an order that depends on the seed alone."""
    dataset = workload.dataset(recipe)
    order = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
    if recipe.resident:
        return ResidentLoader(dataset, recipe.batch_size, order, device)
    return DataLoader(
        dataset,
        batch_size=recipe.batch_size,
        sampler=order,
        drop_last=True,  # every batch has the same shape: nothing recompiles, every step is the same work
        num_workers=recipe.workers,
        persistent_workers=recipe.persistent_workers,
        prefetch_factor=recipe.prefetch_factor if recipe.workers > 0 else None,
        collate_fn=already_a_batch if recipe.batched_fetch else None,
        pin_memory=recipe.pin_memory,
        generator=torch.Generator().manual_seed(seed),  # of the workers' own seeds, never of the order
    )


def already_a_batch(batch: Any) -> Any:
    """The collate function of a data set that fetches whole batches (`__getitems__`)."""
    return batch


class ResidentLoader:
    """The whole data set on the device; batches are slices of it, and no host is involved."""

    def __init__(self, dataset: Any, batch_size: int, order: RandomSampler, device: torch.device) -> None:
        inputs, targets = dataset.__getitems__(list(range(len(dataset))))
        self.inputs = inputs.to(device)
        self.targets = targets.to(device)
        self.batch_size = batch_size
        self.order = order

    def __len__(self) -> int:
        return len(self.targets) // self.batch_size

    def __iter__(self) -> Iterator[Any]:
        shuffled = torch.tensor(list(self.order), device=self.targets.device)
        for step in range(len(self)):
            chosen = shuffled[step * self.batch_size : (step + 1) * self.batch_size]
            yield self.inputs[chosen], self.targets[chosen]


def epochs(loader: Iterable[Any]) -> Iterator[Any]:
    """Batches without end: a new epoch starts where the last one stops."""
    while True:
        yield from loader


def make_model(workload: Any, recipe: Recipe, device: torch.device) -> Any:
    """The model on its device, in its memory layout, compiled where the recipe says so."""
    model: Any = workload.model().to(device)
    model.train()
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)
    if recipe.compile:
        model = torch.compile(model, mode=recipe.compile_mode)
    return model


def make_optimizer(workload: Any, recipe: Recipe, model: nn.Module) -> Any:
    """The workload's optimizer, in the implementation that the recipe asks for."""
    if recipe.optimizer_impl == "fused":
        return workload.optimizer(model.parameters(), fused=True)
    if recipe.optimizer_impl == "foreach":
        return workload.optimizer(model.parameters(), foreach=True)
    if recipe.optimizer_impl == "loop":
        return workload.optimizer(model.parameters(), foreach=False)
    return workload.optimizer(model.parameters())


def to_device(batch: Any, workload: Any, recipe: Recipe, device: torch.device) -> Any:
    """One batch as the model wants it: copied, then prepared on the device."""
    inputs = batch[0].to(device, non_blocking=recipe.non_blocking)
    targets = batch[1].to(device, non_blocking=recipe.non_blocking)
    if hasattr(workload, "prepare"):
        inputs = workload.prepare(inputs, recipe)
    if recipe.channels_last and inputs.dim() == 4:
        inputs = inputs.to(memory_format=torch.channels_last)
    return inputs, targets


class DevicePrefetcher:
    """Copies the next batch on a side stream while the model works on the current one."""

    def __init__(self, batches: Iterator[Any], workload: Any, recipe: Recipe, device: torch.device) -> None:
        self.batches = batches
        self.stream = torch.cuda.Stream(device)
        self.workload = workload
        self.recipe = recipe
        self.device = device
        self.next: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.next is None:
            self.fetch()
        torch.cuda.current_stream().wait_stream(self.stream)
        inputs, targets = self.next
        for tensor in (inputs, targets):  # the allocator must not reuse it while this stream reads it
            tensor.record_stream(torch.cuda.current_stream())
        self.fetch()
        return inputs, targets

    def fetch(self) -> None:
        """Starts the copy of the next batch."""
        batch = next(self.batches)
        with torch.cuda.stream(self.stream):
            self.next = to_device(batch, self.workload, self.recipe, self.device)


def forward(
    model: nn.Module, workload: Any, recipe: Recipe, device: torch.device, inputs: Any, targets: Any
) -> Any:
    """Outputs and loss of one batch."""
    if recipe.amp == "off":
        outputs = model(inputs)
        return outputs, workload.loss(outputs, targets)
    with torch.autocast(device.type, torch.bfloat16 if recipe.amp == "bf16" else torch.float16):
        outputs = model(inputs)
        return outputs, workload.loss(outputs, targets)


class Training:
    """Everything a training step needs, built in the order of a script."""

    def __init__(self, workload: Any, recipe: Recipe, device: torch.device, seed: int = 0) -> None:
        configure(recipe, seed)
        self.workload = workload
        self.recipe = recipe
        self.device = device
        self.loader = make_loader(workload, recipe, device, seed)
        self.model = make_model(workload, recipe, device)
        self.optimizer = make_optimizer(workload, recipe, self.model)
        if recipe.amp == "fp16":
            self.scaler = torch.amp.GradScaler(device.type)

    def batches(self, source: Iterator[Any]) -> Iterator[Any]:
        """The batches of `source` as the training step takes them, on the device."""
        if self.recipe.device_prefetch:
            return DevicePrefetcher(source, self.workload, self.recipe, self.device)
        return (to_device(batch, self.workload, self.recipe, self.device) for batch in source)

    def step(self, batches: Iterator[Any]) -> torch.Tensor:
        """One optimizer step; returns the loss, on the device."""
        loss = self.accumulate(next(batches))
        for _ in range(self.recipe.accumulation - 1):
            loss = loss + self.accumulate(next(batches))
        self.update()
        return loss

    def accumulate(self, batch: Any) -> torch.Tensor:
        """Forward and backward of one batch; its gradients add to those that are there."""
        inputs, targets = batch
        _, loss = forward(self.model, self.workload, self.recipe, self.device, inputs, targets)
        if self.recipe.accumulation > 1:
            loss = loss / self.recipe.accumulation
        if self.recipe.amp == "fp16":
            self.scaler.scale(loss).backward()
        else:
            loss.backward()
        detached: torch.Tensor = loss.detach()
        return detached

    def update(self) -> None:
        """The optimizer step, and the gradients away."""
        if self.recipe.amp == "fp16":
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=self.recipe.set_to_none)


def train(workload: Any, recipe: Recipe, device: torch.device, steps: int, seed: int = 0) -> list[float]:
    """Trains some steps; returns their losses, read after the last step: reading one waits for the device."""
    training = Training(workload, recipe, device, seed)
    batches = training.batches(epochs(training.loader))
    losses = [training.step(batches) for _ in range(steps)]
    return [loss.item() for loss in losses]


def main() -> None:
    """Trains the baseline of a workload: `python -m perfkit.train [WORKLOAD] [DEVICE]`."""
    workload = load(sys.argv[1] if len(sys.argv) > 1 else "cifar_resnet18")
    device = torch.device(sys.argv[2] if len(sys.argv) > 2 else "cpu")
    for step, loss in enumerate(train(workload, Recipe(), device, steps=8)):
        print(f"step {step}: loss {loss:.6f}")


if __name__ == "__main__":
    main()
