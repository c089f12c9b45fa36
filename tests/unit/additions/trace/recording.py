"""A trace written by hand: events in microseconds, saved as the profiler would."""

import gzip
import json

from perfkit.additions.trace.analysis import analyse

MAIN, AUTOGRAD, GPU = 100, 101, 0
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


class Recording:
    def __init__(self, **head):
        self.events = []
        self.head = {"schemaVersion": 1, **head}
        self._next = 1

    def add(self, cat, name, ts, dur, tid=MAIN, pid=7, **args):
        event = {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur}
        self.events.append({**event, "args": args} if args else event)
        return self

    def step(self, number, ts, dur):
        return self.add("user_annotation", f"ProfilerStep#{number}", ts, dur)

    def op(self, name, ts, dur, tid=MAIN, **args):
        return self.add("cpu_op", name, ts, dur, tid, **args)

    def launch(
        self, kernel, at, run, call="cudaLaunchKernel", cat="kernel", stream=7, tid=MAIN, cost=2, **args
    ):
        """A call at `at`, and what it starts on the device: (start, duration)."""
        number, self._next = self._next, self._next + 1
        runtime = "cuda_driver" if call.startswith("cuL") else "cuda_runtime"
        self.add(runtime, call, at, cost, tid, correlation=number)
        return self.add(cat, kernel, *run, stream, GPU, correlation=number, device=0, stream=stream, **args)

    def text(self):
        return json.dumps({**self.head, "traceEvents": self.events}).encode()

    def save(self, folder, name="a.pt.trace.json"):
        path = folder / name
        path.write_bytes(gzip.compress(self.text()) if name.endswith(".gz") else self.text())
        return path

    def analyse(self, folder):
        return analyse(self.save(folder))


def step(length=100, **head):
    return Recording(**head).step(1, 0, length)
