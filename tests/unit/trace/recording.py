"""A trace written by hand: events in microseconds, saved as the profiler would."""

import gzip
import json
from pathlib import Path
from typing import Any, Self

from perfkit.trace import Trace, load

MAIN, AUTOGRAD, GPU = 100, 101, 0


class Recording:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.head: dict[str, Any] = {"schemaVersion": 1}
        self._next = 1

    def add(
        self, cat: str, name: str, ts: float, dur: float, tid: Any = MAIN, pid: Any = 7, **args: Any
    ) -> Self:
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
        self.events.append({**event, "args": args} if args else event)
        return self

    def step(self, number: int, ts: float, dur: float) -> Self:
        return self.add("user_annotation", f"ProfilerStep#{number}", ts, dur)

    def op(self, name: str, ts: float, dur: float, tid: Any = MAIN, **args: Any) -> Self:
        return self.add("cpu_op", name, ts, dur, tid, **args)

    def launch(
        self,
        kernel: str,
        at: float,
        run: tuple[float, float],
        call: tuple[str, str] = ("cuda_runtime", "cudaLaunchKernel"),
        cat: str = "kernel",
        stream: int = 7,
        tid: Any = MAIN,
        cost: float = 2,
        **args: Any,
    ) -> Self:
        """A call at `at`, and what it starts on the device: (start, duration)."""
        number, self._next = self._next, self._next + 1
        self.add(call[0], call[1], at, cost, tid, correlation=number)
        return self.add(cat, kernel, *run, stream, GPU, correlation=number, device=0, stream=stream, **args)

    def memory(self, ts: float, size: int, address: int | None = None, **args: Any) -> Self:
        found = {"Device Type": 1, "Device Id": 0, "Bytes": size, **args}
        if address is not None:
            found["Addr"] = address
        self.events.append(
            {
                "ph": "i",
                "cat": "cpu_instant_event",
                "s": "t",
                "name": "[memory]",
                "pid": 7,
                "tid": MAIN,
                "ts": ts,
                "args": found,
            }
        )
        return self

    def text(self) -> bytes:
        return json.dumps({**self.head, "traceEvents": self.events}).encode()

    def save(self, folder: Path, name: str = "a.pt.trace.json") -> Path:
        path = folder / name
        path.write_bytes(gzip.compress(self.text()) if name.endswith(".gz") else self.text())
        return path

    def load(self, folder: Path) -> Trace:
        return load(self.save(folder))


def sample() -> Self:
    """Two steps with 40 operators and their kernels."""
    made = Recording().step(1, 1000, 100).step(2, 1100, 100)
    for number in range(40):
        made.op("aten::mm", 1001 + 4 * number, 3).launch(
            "gemm", 1002 + 4 * number, (1003 + 4 * number, 2), cost=1
        )
    return made


def written(folder: Path, data: bytes, name: str = "t.json") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path
