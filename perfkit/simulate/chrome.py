"""Simulated steps as a trace of the PyTorch profiler, read like a real one, and marked as simulated.

The names of kernels, processes and the GPU begin with `simulated`. What a model does not know (grids,
occupancy) is left out.
"""

import collections
import gzip
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from msgspec import json

from perfkit import machine
from perfkit.simulate.costs import constants
from perfkit.simulate.host import Outcome
from perfkit.simulate.prediction import Prediction
from perfkit.simulate.queue import Bar
from perfkit.simulate.step import Allocate, Copy, Fetch, Kernel, Operator, Wait

Json = dict[str, Any]

_HOST, _GPU = 1, 0  # processes of the trace
_MAIN, _AUTOGRAD = 1, 2  # threads of the host
_STREAM = 7  # the default stream in CUDA traces
_RANGES = {"forward": "forward", "backward": "backward", "optimizer": "Optimizer.step#simulated"}


def kernel_name(kernel: Kernel) -> str:
    """A simulated kernel in a trace; `perfkit.trace` reads its class from the name."""
    cores = " (Tensor Cores)" if kernel.tensor_cores else ""
    return f"simulated {kernel.kind}: {kernel.name}{cores}"


def write(path: Path, prediction: Prediction, outcome: Outcome) -> None:
    """Writes the steps whose bars were kept as a `.json` or `.json.gz`."""
    gpu = prediction.gpu
    name = f"simulated {gpu.name}"
    facts = {
        "gpu": gpu.name, "host": prediction.host.describe(),
        "model": f"version {constants().version}, constants {constants().digest}",
        "error of samples/s to expect": f"±{prediction.band:.0%}",
    }  # fmt: skip
    device = {
        "id": 0, "name": name, "totalGlobalMem": int(gpu.memory_gib * (1 << 30)),
        "computeMajor": gpu.capability[0], "computeMinor": gpu.capability[1], "numSms": gpu.multiprocessors,
    }  # fmt: skip
    names = [
        ("process_name", _HOST, 0, "simulated host"), ("process_name", _GPU, 0, name),
        ("thread_name", _HOST, _MAIN, "simulated main thread"),
        ("thread_name", _HOST, _AUTOGRAD, "simulated autograd thread"),
    ]  # fmt: skip
    named = [
        {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": called}}
        for what, process, thread, called in names
    ]
    events = sorted(_Events(prediction).of(outcome.bars), key=lambda event: (event["ts"], -event["dur"]))
    document = {"schemaVersion": 1, "simulated": facts, "deviceProperties": [device]}
    text = json.encode({**document, "traceEvents": [*named, *events]})
    machine.write_atomically(path, gzip.compress(text, 6) if path.name.endswith(".gz") else text)


class _Events:
    """The events of a trace, from the bars of a queue."""

    def __init__(self, prediction: Prediction) -> None:
        events = enumerate(prediction.step.events)
        self._actions = [(at, event) for at, event in events if not isinstance(event, Allocate)]
        self._loader = f"_{'Multi' if prediction.recipe.workers else 'Single'}ProcessDataLoaderIter"
        self._kernels: dict[int, list[Kernel]] = collections.defaultdict(list)
        for kernel in prediction.kernels:
            self._kernels[kernel.operator].append(kernel)
        self._number = self._correlation = 0

    def of(self, bars: Sequence[Bar]) -> Iterator[Json]:
        parts: list[Bar] = []
        for bar in bars:
            if bar.what == "host":
                self._number += 1
                yield from self._action(bar, parts)
                parts = []
            else:
                parts.append(bar)
        spans = [bar for bar in bars if bar.what == "host"]
        for phase, group in groupby(spans, lambda bar: getattr(self._actions[bar.action][1], "phase", "")):
            within = list(group)
            if phase in _RANGES:
                yield self._bar("user_annotation", _RANGES[phase], within[0].start, within[-1].end)
        starts = [bar.start for bar in spans if bar.action == 0]
        for number, (start, end) in enumerate(pairwise([*starts, spans[-1].end])):
            yield self._bar("user_annotation", f"ProfilerStep#{number}", start, end)

    def _action(self, span: Bar, parts: list[Bar]) -> Iterator[Json]:
        at, event = self._actions[span.action]
        match event:
            case Fetch():
                name = f"enumerate(DataLoader)#{self._loader}.__next__"
                yield self._bar("user_annotation", name, span.start, span.end)
            case Operator():
                yield from self._operator(event, self._kernels[at], span, parts)
            case Copy() if parts:  # an ideal host's data are on the device already
                yield from self._copy(event, span, parts)
            case Wait(streams=None):
                yield self._bar("cpu_op", "aten::item", span.start, span.end, about=_place(event.site))
                yield self._call("cudaStreamSynchronize", span.start, span.end)
            case Wait():
                yield self._call("cudaStreamWaitEvent", span.start, span.end)

    def _operator(
        self, operator: Operator, kernels: list[Kernel], span: Bar, parts: list[Bar]
    ) -> Iterator[Json]:
        name, thread = operator.name.replace(".", "::", 1), _MAIN
        if operator.phase == "backward":
            thread = _AUTOGRAD
            node = f"autograd::engine::evaluate_function: {name}"
            yield self._bar("cpu_op", node, span.start, span.end, thread)
        about = _place(operator.site, operator.module)
        about["Input Dims"] = [list(tensor.shape) for tensor in operator.inputs]
        yield self._bar("cpu_op", name, span.start, span.end, thread, about)
        launches = (bar for bar in parts if bar.what == "launch")
        runs = (bar for bar in parts if bar.what == "kernel")
        for kernel, launch, run in zip(kernels, launches, runs, strict=True):
            yield self._call("cudaLaunchKernel", launch.start, launch.end, thread)
            work = {"FLOPs": kernel.flops, "bytes moved": int(kernel.nbytes)}
            yield self._device("kernel", kernel_name(kernel), run, work)

    def _copy(self, copy: Copy, span: Bar, parts: list[Bar]) -> Iterator[Json]:
        yield self._bar("cpu_op", "aten::copy_", span.start, span.end, about=_place(copy.site))
        # From pageable memory, the host is in the call all the time; from pinned memory it may wait after it.
        call = parts[0] if copy.pinned else span
        yield self._call("cudaMemcpyAsync", call.start, call.end)
        memory = "Pinned" if copy.pinned else "Pageable"
        ends = f"HtoD ({memory} -> Device)" if copy.to == "device" else f"DtoH (Device -> {memory})"
        yield self._device("gpu_memcpy", f"Memcpy {ends}", parts[-1], {"bytes": copy.nbytes})
        if copy.pinned and not copy.non_blocking:
            yield self._call("cudaStreamSynchronize", call.end, span.end)

    def _call(self, name: str, start: float, end: float, thread: int = _MAIN) -> Json:
        """A call of the runtime, linked to what it starts."""
        self._correlation += 1
        return self._bar("cuda_runtime", name, start, end, thread, {"correlation": self._correlation})

    def _device(self, category: str, name: str, bar: Bar, about: Json) -> Json:
        stream = _STREAM + bar.stream
        args = {**about, "device": 0, "stream": stream, "correlation": self._correlation}
        return self._bar(category, name, bar.start, bar.end, stream, args, _GPU)

    def _bar(
        self, category: str, name: str, start: float, end: float, thread: int = _MAIN,
        about: Json | None = None, process: int = _HOST,
    ) -> Json:  # fmt: skip
        external = {} if category == "user_annotation" else {"External id": self._number}
        return {
            "ph": "X", "cat": category, "name": name, "pid": process, "tid": thread,
            "ts": 1e6 * start, "dur": 1e6 * (end - start), "args": {**(about or {}), **external},
        }  # fmt: skip


def _place(site: str, module: str = "") -> Json:
    """Where in the program, as the profiler's stacks have it."""
    file, _, line = site.rpartition(":")
    return {"Call stack": f"{file}({line}): {module or '<module>'}"} if file else {}
