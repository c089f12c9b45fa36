"""Simulated steps as a trace of the PyTorch profiler, read like a real one, and marked as simulated.

The names of kernels, processes and the GPU begin with `simulated`. What a model does not know (grids,
occupancy) is left out.
"""

import gzip
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from msgspec import json

from perfkit import machine
from perfkit.simulate.constants import constants
from perfkit.simulate.host import Outcome
from perfkit.simulate.prediction import Prediction
from perfkit.simulate.queue import Bar, groups
from perfkit.simulate.step import Copy, Fetch, Kernel, Operator, Wait

Json = dict[str, Any]

_HOST, _GPU = 1, 0
"""Processes of the trace."""
_MAIN, _AUTOGRAD = 1, 2
"""Threads of the host."""
_STREAM = 7
"""CUDA traces call the default stream 7."""
_ANNOTATIONS = {"forward": "forward", "backward": "backward", "optimizer": "Optimizer.step#simulated"}


def kernel_name(kernel: Kernel) -> str:
    """A simulated kernel in a trace; `perfkit.trace` reads its class from the name."""
    cores = " (Tensor Cores)" if kernel.tensor_cores else ""
    return f"simulated {kernel.kind}: {kernel.name}{cores}"


def write(path: Path, prediction: Prediction, outcome: Outcome) -> None:
    """Writes the steps whose bars were kept as a `.json` or `.json.gz`."""
    gpu = prediction.gpu
    name = f"simulated {gpu.name}"
    major, minor = gpu.capability
    device = {
        "id": 0, "name": name, "totalGlobalMem": int(gpu.memory_gib * (1 << 30)), "computeMajor": major,
        "computeMinor": minor, "numSms": gpu.multiprocessors,
    }  # fmt: skip
    facts = {
        "gpu": gpu.name,
        "host": prediction.host.describe(),
        "model": f"version {constants().version}, constants {constants().digest}",
        "error of samples/s to expect": f"±{prediction.band(outcome.step_s):.0%}",
    }
    events = _Events(prediction).of(outcome.bars)
    document = {
        "schemaVersion": 1, "simulated": facts, "deviceProperties": [device],
        "traceEvents": [*_metadata(name), *events],
    }  # fmt: skip
    text = json.encode(document)
    machine.write_atomically(path, gzip.compress(text, 6) if path.name.endswith(".gz") else text)


def _metadata(gpu: str) -> Iterator[Json]:
    for process, name in ((_HOST, "simulated host"), (_GPU, gpu)):
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    for thread, name in ((_MAIN, "simulated main thread"), (_AUTOGRAD, "simulated autograd thread")):
        yield {"ph": "M", "name": "thread_name", "pid": _HOST, "tid": thread, "args": {"name": name}}


class _Events:
    """The events of a trace, from the bars of a queue."""

    def __init__(self, prediction: Prediction) -> None:
        self._all: list[Json] = []
        self._step = prediction.step
        self._loader = f"_{'Multi' if prediction.recipe.workers else 'Single'}ProcessDataLoaderIter"
        self._kernels: dict[int, list[Kernel]] = {}
        for kernel in prediction.kernels:
            self._kernels.setdefault(kernel.operator, []).append(kernel)
        self._correlation = 0
        self._number = 0

    def of(self, bars: Iterable[Bar]) -> list[Json]:
        """The events of whole steps, in the order of time."""
        actions = groups(self._step)
        parts: list[Bar] = []
        starts: list[float] = []
        phases: list[tuple[str, float, float]] = []
        at, end = 0, 0.0
        for bar in bars:
            parts.append(bar)
            if bar.what not in ("action", "fetch"):
                continue
            if at == 0:
                starts.append(bar.start)
            self._action(actions[at], parts)
            phase = getattr(self._step.events[actions[at][0]], "phase", "")
            if at and phases[-1][0] == phase:
                phases[-1] = (phase, phases[-1][1], bar.end)
            else:
                phases.append((phase, bar.start, bar.end))
            parts, end = [], bar.end
            at = (at + 1) % len(actions)
        for phase, start, until in phases:
            if name := _ANNOTATIONS.get(phase):
                self._bar("user_annotation", name, start, until, _MAIN)
        for number, (start, until) in enumerate(pairwise([*starts, end])):
            self._bar("user_annotation", f"ProfilerStep#{number}", start, until, _MAIN)
        return sorted(self._all, key=lambda event: (event["ts"], -event.get("dur", 0.0)))

    def _action(self, events: list[int], bars: list[Bar]) -> None:
        """What the host issued at once: an event of the step, or the operators of a CUDA graph."""
        span, first = bars[-1], self._step.events[events[0]]
        self._number += 1
        match first:
            case Fetch():
                name = f"enumerate(DataLoader)#{self._loader}.__next__"
                self._bar("user_annotation", name, span.start, span.end, _MAIN)
            case Operator():
                self._operator(events, first, bars)
            case Copy():
                self._copy(first, bars)
            case Wait(streams=None):
                self._bar("cpu_op", "aten::item", span.start, span.end, _MAIN, _place(first.site))
                self._call("cudaStreamSynchronize", span.start, span.end, _MAIN)
            case Wait():
                self._call("cudaStreamWaitEvent", span.start, span.end, _MAIN)

    def _operator(self, events: list[int], first: Operator, bars: list[Bar]) -> None:
        """Host bars, launches and kernels of an operator, or of a graph."""
        span, is_graph = bars[-1], len(events) > 1
        thread = _AUTOGRAD if first.phase == "backward" else _MAIN
        name = "cudaGraph" if is_graph else first.name.replace(".", "::", 1)
        if first.phase == "backward":
            node = f"autograd::engine::evaluate_function: {name}"
            self._bar("cpu_op", node, span.start, span.end, thread)
        dims = [] if is_graph else [list(tensor.shape) for tensor in first.inputs]
        about = _place(first.site, first.module) | ({"Input Dims": dims} if dims else {})
        self._bar("cpu_op", name, span.start, span.end, thread, about)
        kernels = [kernel for event in events for kernel in self._kernels.get(event, [])]
        launches = [bar for bar in bars if bar.what == "launch"]
        for launch, ran in zip(launches, [bar for bar in bars if bar.what == "kernel"], strict=True):
            call = "cudaGraphLaunch" if is_graph else "cudaLaunchKernel"
            correlation = self._call(call, launch.start, launch.end, thread)
            start = ran.start
            for kernel in kernels if is_graph else [kernels.pop(0)]:
                end = start + kernel.seconds
                work = {"FLOPs": kernel.flops, "bytes moved": int(kernel.nbytes)}
                self._device("kernel", kernel_name(kernel), start, end, ran.stream, correlation, work)
                start = end

    def _copy(self, copy: Copy, bars: list[Bar]) -> None:
        span, copied = bars[-1], [bar for bar in bars if bar.what == "copy"]
        if not copied:  # an ideal host's data are on the device already
            return
        ran = copied[0]
        self._bar("cpu_op", "aten::copy_", span.start, span.end, _MAIN, _place(copy.site))
        # From pageable memory, the host is in the call all the time; from pinned memory it may wait after it.
        launch = next((bar for bar in bars if bar.what == "launch"), span)
        correlation = self._call("cudaMemcpyAsync", launch.start, launch.end, _MAIN)
        if launch is not span and span.end > launch.end and not copy.non_blocking:
            self._call("cudaStreamSynchronize", launch.end, span.end, _MAIN)
        memory = "Pinned" if copy.pinned else "Pageable"
        ends = f"HtoD ({memory} -> Device)" if copy.to == "device" else f"DtoH (Device -> {memory})"
        about: Json = {"bytes": copy.nbytes}
        self._device("gpu_memcpy", f"Memcpy {ends}", ran.start, ran.end, ran.stream, correlation, about)

    def _call(self, name: str, start: float, end: float, thread: int) -> int:
        """A call of the runtime; returns what links it to what it starts."""
        self._correlation += 1
        about = {"correlation": self._correlation, "External id": self._number}
        self._bar("cuda_runtime", name, start, end, thread, about)
        return self._correlation

    def _device(
        self, category: str, name: str, start: float, end: float, stream: int, correlation: int, about: Json
    ) -> None:
        place = {"device": 0, "stream": _STREAM + stream, "correlation": correlation}
        args = about | place | {"External id": self._number}
        self._add(category, name, start, end, _GPU, _STREAM + stream, args)

    def _bar(
        self, category: str, name: str, start: float, end: float, thread: int, about: Json | None = None
    ) -> None:
        args = (about or {}) | ({"External id": self._number} if category == "cpu_op" else {})
        self._add(category, name, start, end, _HOST, thread, args)

    def _add(
        self, category: str, name: str, start: float, end: float, process: int, thread: int, args: Json
    ) -> None:
        event = {
            "ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": 1e6 * start,
            "dur": 1e6 * (end - start),
        }  # fmt: skip
        self._all.append({**event, "args": args} if args else event)


def _place(site: str, module: str = "") -> Json:
    """Where in the program, as the profiler's stacks have it."""
    file, _, line = site.rpartition(":")
    return {"Call stack": f"{file}({line}): {module or '<module>'}"} if file else {}
