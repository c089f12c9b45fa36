"""Writes simulated steps as a trace of the PyTorch profiler, to be read like a real one.

Names of kernels, processes and the GPU begin with `simulated`; unknown facts (grids, occupancy) are left out.
"""

import gzip
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import json

from perfkit import machine
from perfkit.additions.simulate.costs import constants
from perfkit.additions.simulate.host import HostBar, Outcome
from perfkit.additions.simulate.prediction import Prediction
from perfkit.additions.simulate.step import Copy, Fetch, OperatorCall, Wait, Work

Json = dict[str, Any]

_HOST, _GPU = 1, 0  # processes of the trace
_STREAM = 7  # the default stream in CUDA traces
_WORKER = 100  # the first loader worker's thread
_RANGES = {"forward": "forward", "backward": "backward", "optimizer": "Optimizer.step#simulated"}


def write(path: Path, prediction: Prediction, outcome: Outcome) -> None:
    """Writes the steps whose bars were recorded as a `.json` or `.json.gz`."""
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
    events: list[Json] = [
        {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": called}}
        for process, called in ((_HOST, "simulated host"), (_GPU, name))
    ]
    loader = f"_{'Multi' if prediction.recipe.workers else 'Single'}ProcessDataLoaderIter"
    seen = [bar for bar in outcome.bars if bar.what != "worker"]  # a profiler does not see workers
    events += [*_spans(seen, loader), *_workers(outcome.bars, prediction.recipe.workers)]
    document = {"schemaVersion": 1, "simulated": facts, "deviceProperties": [device], "traceEvents": events}
    text = json.encode(document)
    machine.write_atomically(path, gzip.compress(text, 6) if path.name.endswith(".gz") else text)


def _kernel_name(work: Work, operator: OperatorCall) -> str:
    short = operator.name.removeprefix("aten.")
    if not work.m:  # not a matrix product
        return f"simulated {work.kind} ({short})"
    name = f"simulated {work.kind} {work.precision} ({short})"
    return name if work.precision == "float32" else f"{name} (Tensor Cores)"


def _spans(bars: Sequence[HostBar], loader: str) -> Iterator[Json]:
    step = call = 0  # device work has the number of the runtime call that starts it
    for bar in bars:
        about: Json = {}
        match bar:
            case HostBar("step"):
                category, name = "user_annotation", f"ProfilerStep#{step}"
                step += 1
            case HostBar("host", Fetch()):
                category, name = "user_annotation", f"enumerate(DataLoader)#{loader}.__next__"
            case HostBar("host", OperatorCall() as operator):
                category, name = "cpu_op", operator.name.replace(".", "::", 1)
                about = {"Input Dims": [tensor.shape for tensor in operator.inputs]}
            case HostBar("host", Copy()):
                category, name = "cpu_op", "aten::copy_"
            case HostBar("host", Wait(streams=None)):
                category, name = "cpu_op", "aten::item"
            case HostBar("kernel", OperatorCall() as operator, kernel=(work, _)):
                category, name = "kernel", _kernel_name(work, operator)
                about = {"FLOPs": work.flops, "bytes moved": work.nbytes}
            case HostBar("copy", Copy() as copy):
                memory = "Pinned" if copy.pinned else "Pageable"
                ends = f"HtoD ({memory} -> Device)" if copy.to == "device" else f"DtoH (Device -> {memory})"
                category, name, about = "gpu_memcpy", f"Memcpy {ends}", {"bytes": copy.nbytes}
            case _:
                category, name = "cuda_runtime", _call(bar)
                call += 1
        if category in ("cuda_runtime", "kernel", "gpu_memcpy"):
            about["correlation"] = call
        yield _span(bar, category, name, about)
    hosts = [bar for bar in bars if bar.what == "host"]
    for phase, group in itertools.groupby(hosts, lambda bar: getattr(bar.event, "phase", "")):
        within = list(group)
        if phase in _RANGES:
            span = HostBar("host", None, within[0].start, within[-1].end)
            yield _span(span, "user_annotation", _RANGES[phase], {})


def _workers(bars: Sequence[HostBar], workers: int) -> Iterator[Json]:
    """The batches that each worker loads: for pictures of lanes; readers of profiles skip them."""
    begin = min(bar.start for bar in bars if bar.what == "step")
    for batch, bar in enumerate(bar for bar in bars if bar.what == "worker"):
        if bar.end > begin:  # else it was loaded long before these steps
            span = _span(bar, "loader_worker", f"batch {batch}", {})
            yield span | {"tid": _WORKER + batch % workers}


def _call(bar: HostBar) -> str:
    if bar.what == "launch":
        return "cudaMemcpyAsync" if isinstance(bar.event, Copy) else "cudaLaunchKernel"
    return "cudaStreamSynchronize" if bar.what == "wait" else "cudaStreamWaitEvent"


def _span(bar: HostBar, category: str, name: str, about: Json) -> Json:
    process, thread = _HOST, 1
    if bar.what in ("kernel", "copy"):
        process, thread = _GPU, _STREAM + getattr(bar.event, "stream", 0)
        about |= {"device": 0, "stream": thread}
    start, end = (round(1e6 * time, 3) for time in (bar.start, bar.end))  # so that no bar overlaps the next
    span = {"ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "args": about}
    return span | {"ts": start, "dur": round(end - start, 3)}
