"""Simulated steps as a trace of the PyTorch profiler, read like a real one, and marked as simulated.

The names of kernels, processes and the GPU begin with `simulated`. What a model does not know (grids,
occupancy) is left out.
"""

import collections
import gzip
from collections.abc import Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from msgspec import json

from perfkit import machine
from perfkit.simulate.costs import constants
from perfkit.simulate.host import Outcome
from perfkit.simulate.prediction import Prediction
from perfkit.simulate.queue import Bar
from perfkit.simulate.step import Allocate, Copy, Event, Fetch, Kernel, Operator, Wait

Json = dict[str, Any]

_HOST, _GPU = 1, 0  # processes of the trace
_MAIN = 1  # the thread of the host
_STREAM = 7  # the default stream in CUDA traces
_RANGES = {"forward": "forward", "backward": "backward", "optimizer": "Optimizer.step#simulated"}


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
    named = [
        {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": called}}
        for process, called in ((_HOST, "simulated host"), (_GPU, name))
    ]
    trace = _Trace(prediction, outcome.bars)
    document = {"schemaVersion": 1, "simulated": facts, "deviceProperties": [device]}
    text = json.encode({**document, "traceEvents": [*named, *trace.events]})
    machine.write_atomically(path, gzip.compress(text, 6) if path.name.endswith(".gz") else text)


class _Trace:
    """The events of a trace, from the bars of a queue."""

    def __init__(self, prediction: Prediction, bars: Sequence[Bar]) -> None:
        self.events: list[Json] = []
        self._calls = 0
        self._workers = prediction.recipe.workers
        kernels: dict[int, list[Kernel]] = collections.defaultdict(list)
        for kernel in prediction.kernels:
            kernels[kernel.operator].append(kernel)
        events = enumerate(prediction.step.events)
        actions = [(event, kernels[at]) for at, event in events if not isinstance(event, Allocate)]
        parts: list[Bar] = []
        for bar in bars:
            parts.append(bar)
            if bar.what == "host":
                self._action(*actions[bar.action], bar, parts)
                parts = []
        spans = [bar for bar in bars if bar.what == "host"]
        for phase, group in groupby(spans, lambda bar: getattr(actions[bar.action][0], "phase", "")):
            within = list(group)
            if phase in _RANGES:
                self._add("user_annotation", _RANGES[phase], within[0].start, within[-1].end)
        starts = [bar.start for bar in spans if bar.action == 0]
        for number, (start, end) in enumerate(pairwise([*starts, spans[-1].end])):
            self._add("user_annotation", f"ProfilerStep#{number}", start, end)

    def _action(self, event: Event, kernels: list[Kernel], span: Bar, parts: list[Bar]) -> None:
        start, end = span.start, span.end
        match event:
            case Fetch():
                iterator = f"_{'Multi' if self._workers else 'Single'}ProcessDataLoaderIter"
                self._add("user_annotation", f"enumerate(DataLoader)#{iterator}.__next__", start, end)
            case Operator():
                about = _place(event.site, event.module)
                about["Input Dims"] = [tensor.shape for tensor in event.inputs]
                self._add("cpu_op", event.name.replace(".", "::", 1), start, end, about)
                launches = (bar for bar in parts if bar.what == "launch")
                runs = (bar for bar in parts if bar.what == "kernel")
                for kernel, launch, run in zip(kernels, launches, runs, strict=True):
                    cores = " (Tensor Cores)" if kernel.tensor_cores else ""
                    name = f"simulated {kernel.kind}: {kernel.name}{cores}"
                    self._call("cudaLaunchKernel", launch.start, launch.end)
                    self._device("kernel", name, run, {"FLOPs": kernel.flops, "bytes moved": kernel.nbytes})
            case Copy() if len(parts) > 1:  # an ideal host's data are on the device already
                self._copy(event, span, parts)
            case Wait(streams=None):
                self._add("cpu_op", "aten::item", start, end, _place(event.site))
                self._call("cudaStreamSynchronize", start, end)
            case Wait():
                self._call("cudaStreamWaitEvent", start, end)

    def _copy(self, copy: Copy, span: Bar, parts: list[Bar]) -> None:
        self._add("cpu_op", "aten::copy_", span.start, span.end, _place(copy.site))
        # From pageable memory, the host is in the call all the time; from pinned memory it may wait after it.
        call = parts[0] if copy.pinned else span
        self._call("cudaMemcpyAsync", call.start, call.end)
        memory = "Pinned" if copy.pinned else "Pageable"
        ends = f"HtoD ({memory} -> Device)" if copy.to == "device" else f"DtoH (Device -> {memory})"
        self._device("gpu_memcpy", f"Memcpy {ends}", parts[-2], {"bytes": copy.nbytes})
        if copy.pinned and not copy.non_blocking:
            self._call("cudaStreamSynchronize", call.end, span.end)

    def _call(self, name: str, start: float, end: float) -> None:
        """A call of the runtime; what it starts on the device follows, with the same number."""
        self._calls += 1
        self._add("cuda_runtime", name, start, end, {"correlation": self._calls})

    def _device(self, category: str, name: str, bar: Bar, about: Json) -> None:
        stream = _STREAM + bar.stream
        place = {"device": 0, "stream": stream, "correlation": self._calls}
        self._add(category, name, bar.start, bar.end, about | place, _GPU, stream)

    def _add(
        self, category: str, name: str, start: float, end: float, about: Json | None = None,
        process: int = _HOST, thread: int = _MAIN,
    ) -> None:  # fmt: skip
        times = {"ts": 1e6 * start, "dur": 1e6 * (end - start)}
        event = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "args": about or {}}
        self.events.append(event | times)


def _place(site: str, module: str = "") -> Json:
    """Where in the program, as the profiler's stacks have it."""
    file, _, line = site.rpartition(":")
    return {"Call stack": f"{file}({line}): {module or '<module>'}"} if file else {}
