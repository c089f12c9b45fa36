"""The training program: a plain PyTorch script with every switch in its place.

Learners read this file, the harness measures it, and `perfkit export` writes it out (with what it uses of
`parts.py`), the branches of one recipe left in. Nothing else trains. Every `recipe.…` below is a switch of
`perfkit.Recipe`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler

from perfkit.parts import (
    RankOrder,
    blocks,
    forget_activations,
    mean_over_ranks,
)
from perfkit.recipe import Recipe
from perfkit.workloads import load


def configure(recipe: Recipe, seed: int) -> None:
    """Process-wide settings, before anything is built."""
    torch.manual_seed(seed)
    if recipe.fp32_precision != "default":
        torch.backends.cuda.matmul.fp32_precision = recipe.fp32_precision
        torch.backends.cudnn.conv.fp32_precision = recipe.fp32_precision
        torch.backends.cudnn.rnn.fp32_precision = recipe.fp32_precision
    torch.backends.cudnn.benchmark = recipe.cudnn_benchmark
    if recipe.cpu_threads > 0:
        torch.set_num_threads(recipe.cpu_threads)


def join_ranks(device: torch.device) -> torch.device:
    """Initialises the process group from torchrun's environment variables; returns this rank's device."""
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    if not distributed.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, timeout=timedelta(minutes=10))
    return device


# What watches the phases of each step: see perfkit.worker.observe. Scripts are exported without it.
observer: Any = None


def phase(name: str, recipe: Recipe) -> Any:
    """A part of the training step, which can be observed; in a script it is a named range, or nothing."""
    return observer(name, nullcontext()) if observer else nullcontext()


def make_loader(workload: Any, recipe: Recipe, device: torch.device, seed: int) -> Iterable[Any]:
    """Batches of (inputs, targets), in an order that depends only on the seed."""
    dataset = workload.dataset(recipe)
    order: Any = RandomSampler(dataset, generator=torch.Generator().manual_seed(seed))
    if recipe.ranks > 1:
        order = RankOrder(order)
    return DataLoader(
        dataset,
        batch_size=recipe.batch_size,
        sampler=order,
        drop_last=True,  # every batch has the same shape: nothing recompiles, every step is the same work
        num_workers=recipe.workers,
        persistent_workers=recipe.workers > 0,
        prefetch_factor=recipe.prefetch_factor if recipe.workers > 0 else None,
        collate_fn=already_a_batch if recipe.batched_fetch else None,
        pin_memory=recipe.pin_memory,
        generator=torch.Generator().manual_seed(seed),  # seeds the workers, not the order
    )


def already_a_batch(batch: Any) -> Any:
    """The collate function of a data set that fetches whole batches (`__getitems__`)."""
    return batch


def epochs(loader: Iterable[Any]) -> Iterator[Any]:
    """Batches without end: a new epoch starts when the last one is over."""
    while True:
        yield from loader


def make_model(workload: Any, recipe: Recipe, device: torch.device) -> Any:
    """The model on its device, ready to train."""
    model: Any = workload.model()
    if recipe.channels_last:
        model = model.to(memory_format=torch.channels_last)
    model = model.to(device)
    model.train()
    if recipe.activation_checkpointing:
        for block in blocks(model):
            forget_activations(block)
    if recipe.ranks > 1:
        model = DistributedDataParallel(model)
    if recipe.compile:
        model = torch.compile(model, mode=recipe.compile_mode)
    return model


def make_optimizer(workload: Any, recipe: Recipe, model: nn.Module) -> Any:
    """The workload's optimizer."""
    if recipe.optimizer_impl == "fused":
        return workload.optimizer(model.parameters(), fused=True)
    if recipe.optimizer_impl == "foreach":
        return workload.optimizer(model.parameters(), foreach=True)
    if recipe.optimizer_impl == "loop":
        return workload.optimizer(model.parameters(), foreach=False)
    return workload.optimizer(model.parameters())


def to_device(batch: Any, workload: Any, recipe: Recipe, device: torch.device) -> Any:
    """One batch, ready for the model: copied to the device, then prepared there."""
    with phase("copy", recipe):
        inputs = batch[0].to(device, non_blocking=recipe.non_blocking)
        targets = batch[1].to(device, non_blocking=recipe.non_blocking)
    if hasattr(workload, "prepare"):
        inputs = workload.prepare(inputs, recipe)
    if recipe.channels_last and inputs.dim() == 4:
        inputs = inputs.to(memory_format=torch.channels_last)
    return inputs, targets


class DevicePrefetcher:
    """Copies the next batch on a second stream while the model works on the current one."""

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
        if recipe.ranks > 1:
            device = join_ranks(device)
        self.workload = workload
        self.recipe = recipe
        self.device = device
        self.loader = make_loader(workload, recipe, device, seed)
        self.model = make_model(workload, recipe, device)
        self.optimizer = make_optimizer(workload, recipe, self.model)
        if recipe.amp == "fp16":
            self.scaler = torch.amp.GradScaler(device.type)

    def batches(self, source: Iterator[Any]) -> Iterator[Any]:
        """The batches of `source`, on the device and ready for the training step."""
        if self.recipe.device_prefetch:
            return DevicePrefetcher(source, self.workload, self.recipe, self.device)
        return (to_device(batch, self.workload, self.recipe, self.device) for batch in source)

    def step(self, batches: Iterator[Any]) -> torch.Tensor:
        """One optimizer step; returns the loss, on the device."""
        with phase("step", self.recipe):
            if self.recipe.no_sync:
                loss = self.accumulate_apart(batches)
            else:
                loss = self.accumulate(batches)
                for _ in range(self.recipe.accumulation - 1):
                    loss = loss + self.accumulate(batches)
            self.update()
        return loss

    def accumulate_apart(self, batches: Iterator[Any]) -> torch.Tensor:
        """All batches of a step; the ranks average their gradients only after the last one."""
        with self.model.no_sync():
            loss = self.accumulate(batches)
            for _ in range(self.recipe.accumulation - 2):
                loss = loss + self.accumulate(batches)
        return loss + self.accumulate(batches)

    def accumulate(self, batches: Iterator[Any]) -> torch.Tensor:
        """Forward and backward of the next batch; its gradients are added to those already there."""
        with phase("data", self.recipe):
            inputs, targets = next(batches)
        with phase("forward", self.recipe):
            _, loss = forward(self.model, self.workload, self.recipe, self.device, inputs, targets)
        if self.recipe.accumulation > 1:
            loss = loss / self.recipe.accumulation
        with phase("backward", self.recipe):
            if self.recipe.amp == "fp16":
                self.scaler.scale(loss).backward()
            else:
                loss.backward()
        detached: torch.Tensor = loss.detach()
        return detached

    def update(self) -> None:
        """The optimizer step; then the gradients are cleared."""
        with phase("optimizer", self.recipe):
            if self.recipe.amp == "fp16":
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=self.recipe.zero_grad_set_to_none)


def train(workload: Any, recipe: Recipe, device: torch.device, steps: int, seed: int = 0) -> list[float]:
    """Trains for some steps; returns their losses, read at the end because reading waits for the device."""
    training = Training(workload, recipe, device, seed)
    batches = training.batches(epochs(training.loader))
    losses = [training.step(batches) for _ in range(steps)]
    if recipe.ranks > 1:
        shared = mean_over_ranks(losses).tolist()
        distributed.destroy_process_group()
        return shared if int(os.environ["RANK"]) == 0 else []  # rank 0 reports
    return [loss.item() for loss in losses]


def main() -> None:
    """Trains the baseline of a workload: `python -m perfkit.train [WORKLOAD] [DEVICE]`."""
    workload = load(sys.argv[1] if len(sys.argv) > 1 else "cifar_resnet18")
    device = torch.device(sys.argv[2] if len(sys.argv) > 2 else "cpu")
    for step, loss in enumerate(train(workload, Recipe(), device, steps=8)):
        print(f"step {step}: loss {loss:.6f}")


if __name__ == "__main__":
    main()
