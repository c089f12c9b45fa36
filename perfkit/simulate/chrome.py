"""Simulated steps as a trace of the PyTorch profiler, read like a real one, and marked as none.

The names of kernels, processes and the GPU begin with `simulated`. What a trace of a real GPU has and a model
does not know (grids, occupancy) is left out.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import json

from perfkit import machine
from perfkit.simulate.gpus import Gpu
from perfkit.simulate.queue import Bar, groups
from perfkit.simulate.step import Allocate, Copy, Fetch, Kernel, Operator, Step, Wait

Json = dict[str, Any]

_HOST, _GPU = 1, 0
"""Processes of the trace."""
_MAIN, _AUTOGRAD = 1, 2
"""Threads of the host."""
_STREAM = 7
"""What a CUDA trace calls the default stream; the others follow it."""
_ARCHITECTURES = {"volta": (7, 0), "ampere": (8, 0), "ada": (8, 9), "hopper": (9, 0)}
_TYPES = {"float32": "float", "float16": "c10::Half", "bfloat16": "c10::BFloat16", "uint8": "unsigned char",
          "int64": "long int", "bool": "bool"}  # fmt: skip


_ANNOTATIONS = {"forward": "forward", "backward": "backward", "optimizer": "Optimizer.step#simulated"}


def kernel_name(kernel: Kernel) -> str:
    """What a simulated kernel is called in a trace; `perfkit.trace` reads its class from it."""
    cores = " (Tensor Cores)" if kernel.tensor_cores else ""
    return f"simulated {kernel.kind}: {kernel.name}{cores}"


def write(
    path: Path, step: Step, kernels: Sequence[Kernel], gpu: Gpu, bars: Iterable[Bar], facts: dict[str, str],
    loader: str = "",
) -> None:  # fmt: skip
    """Writes some consecutive steps as a `.json` or `.json.gz`.

    Args:
        path: the file.
        step: whose they are.
        kernels: of one step.
        gpu: the data sheet.
        bars: what the queue noted while whole steps were issued, one after the other.
        facts: what the numbers are: model, band, host; kept under `simulated`.
        loader: the class of the loader's iterator; empty without a loader.
    """
    events = _Events(step, kernels, loader)
    events.take(bars)
    name = f"simulated {gpu.name}"
    major, minor = _ARCHITECTURES[gpu.architecture]
    device = {
        "id": 0, "name": name, "totalGlobalMem": int(gpu.memory_gib * (1 << 30)), "computeMajor": major,
        "computeMinor": minor, "numSms": gpu.multiprocessors,
    }  # fmt: skip
    document = {
        "schemaVersion": 1, "simulated": {"gpu": gpu.name, **facts}, "deviceProperties": [device],
        "traceEvents": [*_metadata(name), *events.all],
    }  # fmt: skip
    text = json.encode(document)
    machine.write_atomically(path, gzip.compress(text, 6) if path.name.endswith(".gz") else text)


def _metadata(gpu: str) -> Iterator[Json]:
    for process, name in ((_HOST, "simulated host"), (_GPU, gpu)):
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    for thread, name in ((_MAIN, "simulated main thread"), (_AUTOGRAD, "simulated autograd thread")):
        yield {"ph": "M", "name": "thread_name", "pid": _HOST, "tid": thread, "args": {"name": name}}


class _Events:
    """The events of a trace, made from the bars of a queue."""

    def __init__(self, step: Step, kernels: Sequence[Kernel], loader: str) -> None:
        self.all: list[Json] = []
        self._step, self._loader = step, loader
        self._kernels: dict[int, list[Kernel]] = {}
        for kernel in kernels:
            self._kernels.setdefault(kernel.operator, []).append(kernel)
        self._correlation = 0
        self._number = 0
        self._allocated = step.resident_bytes

    def take(self, bars: Iterable[Bar]) -> None:
        """Bars of whole steps."""
        actions = groups(self._step)
        own: list[Bar] = []
        starts: list[float] = []
        phases: list[tuple[str, float, float]] = []
        at, end = 0, 0.0
        for bar in bars:
            own.append(bar)
            if bar.what not in ("action", "fetch"):
                continue
            if at == 0:
                starts.append(bar.start)
            self._action(actions[at], own)
            phase = self._phase(actions[at][0])
            if phases and phases[-1][0] == phase and at:
                phases[-1] = (phase, phases[-1][1], bar.end)
            else:
                phases.append((phase, bar.start, bar.end))
            own, end = [], bar.end
            at = (at + 1) % len(actions)
        for phase, start, until in phases:
            if name := _ANNOTATIONS.get(phase):
                self._bar("user_annotation", name, start, until, _HOST, _MAIN)
        for number, (start, until) in enumerate(pairwise([*starts, end])):
            self._bar("user_annotation", f"ProfilerStep#{number}", start, until, _HOST, _MAIN)
        self.all.sort(key=lambda event: (event["ts"], -event.get("dur", 0.0)))

    def _action(self, events: list[int], bars: list[Bar]) -> None:
        """What the host issued at once: an event of the step, or the operators of a CUDA graph."""
        whole = bars[-1]
        first = self._step.events[events[0]]
        match first:
            case Fetch():
                if self._loader:
                    name = f"enumerate(DataLoader)#{self._loader}.__next__"
                    self._bar("user_annotation", name, whole.start, whole.end, _HOST, _MAIN)
            case Operator():
                self._operator(events, first, bars)
            case Copy():
                self._copy(first, bars)
            case Wait(streams=None):
                self._number += 1
                self._bar("cpu_op", "aten::item", whole.start, whole.end, _HOST, _MAIN, _place(first.site))
                self._call("cudaStreamSynchronize", whole, _MAIN)
            case Wait():
                self._call("cudaStreamWaitEvent", whole, _MAIN)
        self._memory(events, whole)

    def _operator(self, events: list[int], first: Operator, bars: list[Bar]) -> None:
        """Host bars, launches and kernels of an operator, or of a graph under its first operator's phase."""
        whole = bars[-1]
        kernels = [kernel for event in events for kernel in self._kernels.get(event, [])]
        thread = _AUTOGRAD if first.phase == "backward" else _MAIN
        name = first.name.replace(".", "::", 1) if len(events) == 1 else "cudaGraph"
        if first.phase == "backward":
            node = f"autograd::engine::evaluate_function: {first.module or name}"
            self._bar("cpu_op", node, whole.start, whole.end, _HOST, thread)
        if first.name == "fused":
            name = "fused " + " ".join(map(str, first.attributes.get("nodes", [])))[:200]
        about = _place(first.site, first.module)
        if len(events) == 1:
            about |= {
                "Input Dims": [list(tensor.shape) for tensor in first.inputs],
                "Input type": [_TYPES.get(tensor.dtype, tensor.dtype) for tensor in first.inputs],
            }
        self._number += 1
        self._bar("cpu_op", name, whole.start, whole.end, _HOST, thread, about)
        graph = len(events) > 1
        for launch, ran in zip(_of(bars, "launch"), _of(bars, "kernel"), strict=True):
            correlation = self._call("cudaGraphLaunch" if graph else "cudaLaunchKernel", launch, thread)
            start = ran.start
            for kernel in kernels if graph else [kernels.pop(0)]:
                end = start + kernel.seconds
                about = {"FLOPs": kernel.flops, "bytes moved": int(kernel.nbytes)}
                self._device("kernel", kernel_name(kernel), start, end, ran, correlation, about)
                start = end

    def _copy(self, copy: Copy, bars: list[Bar]) -> None:
        whole, copied = bars[-1], _of(bars, "copy")
        if not copied:  # an ideal host's data are on the device already
            return
        ran = copied[0]
        self._number += 1
        self._bar("cpu_op", "aten::copy_", whole.start, whole.end, _HOST, _MAIN, _place(copy.site))
        # From pageable memory, the host is in the call all the time; from pinned memory it may wait after it.
        launch = next(iter(_of(bars, "launch")), whole)
        correlation = self._call("cudaMemcpyAsync", launch, _MAIN)
        if launch is not whole and whole.end > launch.end and not copy.non_blocking:
            self._call("cudaStreamSynchronize", Bar("launch", launch.end, whole.end, -1), _MAIN)
        memory = "Pinned" if copy.pinned else "Pageable"
        ends = f"HtoD ({memory} -> Device)" if copy.to == "device" else f"DtoH (Device -> {memory})"
        about: Json = {"bytes": copy.nbytes}
        if seconds := ran.end - ran.start:
            about["memory bandwidth (GB/s)"] = copy.nbytes / seconds / 1e9
        self._device("gpu_memcpy", f"Memcpy {ends}", ran.start, ran.end, ran, correlation, about)

    def _memory(self, events: list[int], whole: Bar) -> None:
        """What is allocated and freed after an event of the step, and before the next one that is issued."""
        for event in self._step.events[events[0] + 1 :]:
            if not isinstance(event, Allocate):
                break
            self._allocated += event.nbytes
            # A block belongs to the operator that runs when it is allocated.
            time = whole.start + 0.5 * (whole.end - whole.start) if event.nbytes > 0 else whole.end
            thread = _AUTOGRAD if self._phase(events[0]) == "backward" else _MAIN
            about = {
                "Device Type": 1, "Device Id": 0, "Bytes": event.nbytes, "Addr": event.block + 1,
                "Total Allocated": self._allocated, "kind": event.kind,
            }  # fmt: skip
            self.all.append({
                "ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]", "pid": _HOST,
                "tid": thread, "ts": 1e6 * time, "args": about,
            })  # fmt: skip

    def _phase(self, event: int) -> str:
        return getattr(self._step.events[event], "phase", "")

    def _call(self, name: str, bar: Bar, thread: int) -> int:
        """A call of the runtime; returns what links it to what it starts."""
        self._correlation += 1
        about = {"correlation": self._correlation, "External id": self._number}
        self._bar("cuda_runtime", name, bar.start, bar.end, _HOST, thread, about)
        return self._correlation

    def _device(
        self, category: str, name: str, start: float, end: float, ran: Bar, correlation: int, about: Json
    ) -> None:
        stream = _STREAM + ran.stream
        links = {"device": 0, "stream": stream, "correlation": correlation, "External id": self._number}
        self._bar(category, name, start, end, _GPU, stream, about | links)

    def _bar(
        self, category: str, name: str, start: float, end: float, process: int, thread: int,
        about: Json | None = None,
    ) -> None:  # fmt: skip
        event = {
            "ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": 1e6 * start,
            "dur": 1e6 * (end - start),
        }  # fmt: skip
        args = (about or {}) | ({"External id": self._number} if category == "cpu_op" else {})
        self.all.append({**event, "args": args} if args else event)


def _of(bars: list[Bar], what: str) -> list[Bar]:
    return [bar for bar in bars if bar.what == what]


def _place(site: str, module: str = "") -> Json:
    """Where in the program, as the profiler's stacks have it."""
    match = re.fullmatch(r"(.*):(\d+)", site)
    return {"Call stack": f"{match[1]}({match[2]}): {module or '<module>'}"} if match else {}
