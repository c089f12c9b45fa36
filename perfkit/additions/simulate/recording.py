"""Records one training step: runs the training program on tensors without numbers, and listens to it."""

import contextlib
import gc
import itertools
import math
import re
import statistics
import sys
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from msgspec.structs import replace
from torch import nn
from torch.utils.data import DataLoader

from perfkit import train, workloads
from perfkit.additions.simulate import fake
from perfkit.additions.simulate import step as steps
from perfkit.additions.simulate.fake import Unpredictable
from perfkit.additions.simulate.fusion import fused
from perfkit.program import Program, endless
from perfkit.recipe import Recipe

_NO_KERNEL = re.compile("(new_)?empty(_strided|_like|_permuted)?|is_same_size|record_stream")
_BORN_IN: dict[steps.Phase, steps.MemoryKind] = {
    "copy": "batch", "prepare": "batch", "forward": "activations", "backward": "workspace",
    "optimizer": "workspace",
}  # fmt: skip


def _unknown(tensor: torch.Tensor) -> float:
    if tensor.is_floating_point():
        return math.nan
    raise Unpredictable("it reads a whole number or a truth value from the device and goes on with it")


class Recorder:
    """The events of a step. Memory is tracked from the start, everything else only while `on`."""

    def __init__(self) -> None:
        self.events: list[steps.Event] = []
        self.on = False
        self.phase: steps.Phase = "prepare"
        self._numbers = itertools.count(1)
        self._known: dict[int, steps.Allocate] = {}  # by the id of the storage
        self.in_use: dict[int, steps.Allocate] = {}  # the blocks that operators have made

    def operator(self, name: str, given: Mapping[str, object], out: object, made: object) -> None:
        """Records an operator that is not a view, its arguments and results; `made` are in new memory."""
        short = name.removeprefix("aten.")
        if self.on and not _NO_KERNEL.fullmatch(short):
            inputs, outputs = ([*map(self._described, fake.tensors(tree))] for tree in (given, out))
            # An optimizer's step count is in host memory.
            counts = self.phase == "optimizer" and short in ("add_", "_foreach_add_")
            if not counts or any(tensor.shape for tensor in inputs):
                about = given if "convolution" in short else {}
                attributes = {k: v for k, v in about.items() if not isinstance(v, torch.Tensor)}
                if short.startswith(("_foreach", "_fused_")):
                    lists = [value for value in given.values() if isinstance(value, list | tuple)]
                    attributes["lists"] = len([each for each in lists if list(fake.tensors(each))])
                self.events.append(steps.OperatorCall(name, self.phase, inputs, outputs, attributes))
        for tensor in fake.tensors(made):
            block = self._block(tensor)
            if block.nbytes and block.block not in self.in_use:
                self.in_use[block.block] = block
                if self.on:
                    self.events.append(block)

    def number(self, tensor: torch.Tensor) -> float:
        """Records that a value is read, for which the host waits. There is no number to return."""
        paths = [frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe())]
        if any("/torch/optim/" in path for path in paths):
            return 1.0  # the step count, which is in host memory
        if self.on:
            self.events.append(steps.Wait())
        if any(path.endswith("/grad_scaler.py") for path in paths):
            return 0.0  # no gradient was infinite, so the optimizer steps, as nearly always
        return _unknown(tensor)

    def readers(self) -> dict[str, Callable[..., object]]:
        """Replacements for the methods of tensors that copy to the host."""

        def cpu(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
            if self.on:
                self.events.append(steps.Copy(tensor.nbytes, "host"))
            return tensor

        def numpy(tensor: torch.Tensor, **_: object) -> Any:
            return np.full(tensor.shape, _unknown(cpu(tensor)), np.float32)

        return {"cpu": cpu, "numpy": numpy, "tolist": lambda tensor: numpy(tensor).tolist()}

    def _block(self, tensor: torch.Tensor) -> steps.Allocate:
        storage = tensor.untyped_storage()
        key = id(storage)
        if key not in self._known:
            self._known[key] = steps.Allocate(storage.nbytes(), _BORN_IN[self.phase], next(self._numbers))
            weakref.finalize(storage, self._free, key).atexit = False
        return self._known[key]

    def _free(self, key: int) -> None:
        block = self._known.pop(key)
        if self.in_use.pop(block.block, None):
            if block.kind == "activations" and self.phase == "forward":
                block.kind = "workspace"  # the backward pass does not need it
            if self.on:
                self.events.append(replace(block, nbytes=-block.nbytes))

    def label(self, values: object, kind: steps.MemoryKind) -> None:
        """Labels the memory of tensors with its use."""
        for tensor in fake.tensors(values):
            self._block(tensor).kind = kind

    def _described(self, tensor: torch.Tensor) -> steps.Tensor:
        layout: steps.Layout = "strided"
        if tensor.is_contiguous():
            layout = "contiguous"
        elif tensor.is_contiguous(memory_format=torch.channels_last):
            layout = "channels_last"
        dtype = str(tensor.dtype).removeprefix("torch.")
        return steps.Tensor(tuple(tensor.shape), dtype, layout, self._block(tensor).block)


def planned(workload: str, options: dict[str, Any], switches: dict[str, Any]) -> steps.StepEvents | str:
    """The plan of one steady step for any GPU, or why there is none; an error if nothing can be built."""
    torch.set_num_threads(1)
    try:
        return record(workloads.load(workload, options), Recipe.from_dict(switches))
    except Exception as problem:  # whatever the workload's code raises
        return reason(problem)


def fetch_s(workload: str, options: dict[str, Any], switches: dict[str, Any], batch: int = 16) -> float:
    """The core time in s of fetching and collating a sample on this machine, by one thread."""
    torch.set_num_threads(1)
    dataset = workloads.load(workload, options).dataset(Recipe.from_dict(switches))
    batches = endless(DataLoader(dataset, batch))
    end = time.monotonic() + 1.0
    times: list[float] = []
    while len(times) < 3 or (time.monotonic() < end and len(times) < 50):
        start = time.thread_time()
        inputs, _ = next(batches)
        times.append((time.thread_time() - start) / len(inputs))
    return statistics.median(times[1:])


@dataclass(eq=False)
class _Listened(Program):
    """The program of a recorded step: its batches have no numbers, and its parts are phases."""

    recorder: Recorder
    recipe: Recipe
    building: contextlib.ExitStack
    running: contextlib.ExitStack
    model: Any = None
    optimizer: Any = None

    def built(self, loader: Any, model: Any, optimizer: Any, scaler: Any, device: torch.device) -> None:
        self.model, self.optimizer = model, optimizer

    def part(self, name: str) -> contextlib.AbstractContextManager[None]:
        phase = cast(steps.Phase, name)  # of the step until the next part
        self.recorder.phase = "prepare" if phase == "copy" else phase  # on a CPU nothing is copied
        return contextlib.nullcontext()

    def batches(self, loader: Any) -> Iterator[Any]:
        recipe = self.recipe
        recorder = self.recorder
        self.building.close()
        _must_be_modelled(self.model)
        dataset = loader.dataset
        sample = loader.collate_fn([dataset[0]])
        if [isinstance(leaf, torch.Tensor) for leaf in sample] != [True, True]:
            raise Unpredictable("its data set does not give pairs of inputs and target, a tensor each")
        copies = [
            steps.Copy(leaf.nbytes * recipe.batch_size, "device", recipe.pin_memory, recipe.non_blocking)
            for leaf in sample
        ]
        self.running.enter_context(fake.listening(recorder))
        while True:
            recorder.phase = "copy"
            if recorder.on:
                recorder.events += [steps.Fetch(), *copies]
            yield [leaf.new_empty(recipe.batch_size, *leaf.shape[1:]) for leaf in sample]


def record(workload: Any, recipe: Recipe) -> steps.StepEvents:
    """One steady step under a recipe; `Unpredictable` if it needs numbers, or what is not modelled."""
    recorder = Recorder()
    plain = recipe.replace(compile=False, device_prefetch=False, pin_memory=False, workers=0)
    with contextlib.ExitStack() as running, contextlib.ExitStack() as building:
        building.enter_context(fake.uninitialised())
        listened = _Listened(recorder, recipe, building, running)
        losses: Any = train.train(plain, workload, torch.device("cpu"), program=listened)
        running.callback(losses.close)
        next(losses)
        step = recorded(recorder, lambda: next(losses), listened.model, listened.optimizer)
    if recipe.device_prefetch:
        step = _prefetched(step, recipe.accumulation)
    return fused(step) if recipe.compile else step


def _must_be_modelled(model: nn.Module) -> None:
    for module in model.modules():
        name = type(module).__name__
        if getattr(module, "sparse", False):
            raise Unpredictable(f"its {name} layers have sparse gradients, which are not modelled")
        if isinstance(module, nn.RNNBase | nn.RNNCellBase):
            raise Unpredictable(f"its {name} layers run in kernels of cuDNN that are not modelled")


def recorded(recorder: Recorder, take: Callable[[], object], model: Any, optimizer: Any) -> steps.StepEvents:
    """Records a step, after work that only the first step does. The caller is already `listening`."""
    weights = list(model.parameters())

    def label_gradients(*_: object) -> None:
        recorder.label([weight.grad for weight in weights], "gradients")

    label_gradients()
    if optimizer:
        optimizer.register_step_pre_hook(label_gradients)
        recorder.label([*optimizer.state.values()], "optimizer")
    gc.collect()  # else earlier tensors would be freed in the recorded step
    resident = list(recorder.in_use.values())
    recorder.on = True
    take()
    recorder.on = False
    sizes = {tensor.data_ptr() or id(tensor): tensor.nbytes for tensor in [*weights, *model.buffers()]}
    constant = [steps.Allocate(size, "weights", -1 - at) for at, size in enumerate(sizes.values())]
    return steps.StepEvents(
        events=recorder.events,
        resident=constant + resident,
        conv_precision=torch.backends.cudnn.conv.fp32_precision,
        matmul_precision=torch.backends.cuda.matmul.fp32_precision,
    )


def _prefetched(step: steps.StepEvents, accumulation: int) -> steps.StepEvents:
    """The step with copies on a second stream, a batch ahead; that batch is in memory all the time, too."""
    early: list[steps.Event] = [steps.Wait((0, 1))]
    late: list[steps.Event] = []
    copies: list[steps.Copy] = []
    for event in step.events:
        if isinstance(event, steps.Copy) and event.to == "device":
            copies.append(event)
            early.append(replace(event, stream=1))
        elif isinstance(event, steps.OperatorCall) and event.phase == "prepare":
            early.append(replace(event, stream=1))
        elif isinstance(event, steps.Fetch):
            early.append(event)
        else:
            late.append(event)
    batch = enumerate(copies[: len(copies) // accumulation], len(step.resident) + 1)
    ahead = [steps.Allocate(copy.nbytes, "batch", -number) for number, copy in batch]
    return replace(step, events=early + late, resident=step.resident + ahead)


def reason(problem: Exception) -> str:
    """Why a program cannot be planned, in words for the user."""
    lines = str(problem).strip().splitlines() or [""]
    if isinstance(problem, Unpredictable):
        return lines[0]
    if "NVIDIA" in lines[0]:
        return "its own code asks for a CUDA device, but there is none: use the device of its inputs"
    return f"its own code fails on tensors without numbers ({type(problem).__name__}: {lines[0][:200]})"
