"""What watching several ranks costs: two ranks that are watched in some blocks of steps and not in others.

    python -m benchmarks.overhead ranks
    python -m benchmarks.overhead hooks

Equal processes differ by more than there is to be seen, so both are measured in the same ranks, in turn. In a
block without watching, the process that watches is suspended, the hooks hand on at once, and no thread
looks at a stack. What keeps files from being changed stays; it does nothing in a step.

Blocks are short and many, so that both see the same machine. Their ratio is still less certain than the time
of the hooks, which is counted in the ranks, as the training waits for it, less what counting itself takes:
that is counted in a block with empty hooks. The CPU time of the thread that answers is added in full, though
it mostly runs while torch computes. What the process that watches takes of a core is told apart: it delays a
training only where no core is free.

`hooks` divides that time by hook. It is the quick way to see whether a change of the hooks has helped.
"""

import contextlib
import math
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import psutil

from benchmarks.switched import Watching
from perfkit.additions.ranks.launch import launch_of
from perfkit.additions.ranks.started import WatchedRanks
from perfkit.results import stats

ROOT = Path(__file__).parents[1]
RANKS = 2
STEPS = 50  # of a block; whoever watches looks at the tree every two seconds, so in each fourth block or so
PAIRS = 20  # of blocks in a launch
COUNTED = 300  # steps in which hooks are told apart
WARMUP = 120  # steps, by which a rank has compared its rows and most of its weights
SCRIPT = """
import sys, time
from multiprocessing.connection import Client
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, RandomSampler, TensorDataset
from benchmarks import switched

torch.set_num_threads(1)
dist.init_process_group("gloo")
data = TensorDataset(torch.randn(4096, 512), torch.randint(10, (4096,)))
# A single epoch, as whoever watches has to see the start of each.
loader = DataLoader(data, 128, sampler=RandomSampler(data, replacement=True, num_samples=10**9))
count, width = map(int, sys.argv[2:])
layers = [nn.Linear(512, width), nn.ReLU()]
for _ in range(count - 2):
    layers += [nn.Linear(width, width), nn.ReLU()]
model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(width, 10)))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
source = iter(loader)

with Client(("localhost", int(sys.argv[1]))) as connection:
    while block := connection.recv():
        steps, how = block
        switched.switch(how)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            inputs, targets = next(source)
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        connection.send((time.perf_counter() - start, switched.by_hook(), switched.thread_spent_s()))
dist.destroy_process_group()
"""


class SwitchedRanks(WatchedRanks):
    """Ranks that switch their watching."""

    watcher = "benchmarks.switched:watch"


def watch(*arguments: str) -> None:
    """Watches the ranks until they end."""
    how = ["--standalone", "--nproc-per-node", str(RANKS), "train.py", *arguments]
    launched = SwitchedRanks(launch_of(["torchrun", *how])).start()
    with launched:
        launched.let_train(0.0, whole=True)


class Block(NamedTuple):
    """Seconds of some steps of a rank, its hooks in them, and CPU time of the thread that answers."""

    seconds: float
    hooks: dict[str, tuple[int, float]]  # calls and seconds by what each is around
    thread_s: float

    def without(self, empty: "Block") -> "Block":
        """The same, less what an empty hook takes at the same place."""
        own = dict[str, tuple[int, float]]()
        for name, (calls, seconds) in self.hooks.items():
            of_counting = empty.hooks.get(name, (1, 0.0))
            own[name] = calls, seconds - calls * of_counting[1] / of_counting[0]
        return self._replace(hooks=own)

    @property
    def share(self) -> float:
        """The part of the steps that watching takes in the rank, at most."""
        return (sum(seconds for _, seconds in self.hooks.values()) + self.thread_s) / self.seconds


class Pair(NamedTuple):
    """Two blocks, one after the other."""

    log_ratio: float  # of the speed watched / not watched
    share: float  # of the steps of the rank with most, in hooks and in the thread that answers
    of_thread: float  # of it, in that thread
    of_core: float  # that the process that watches took
    step_s: float


class Bench:
    """A launch: its ranks, and the process that watches them."""

    def __init__(self, watcher: psutil.Process, ranks: list[Connection]) -> None:
        self._watcher = watcher
        self._ranks = ranks
        self.block(WARMUP, Watching.ON)
        self._empty = self.block(WARMUP, Watching.EMPTY)

    def block(self, steps: int, how: Watching) -> list[Block]:
        """So many steps of each rank."""
        if how is Watching.ON:
            self._watcher.resume()
        else:
            self._watcher.suspend()
        for rank in self._ranks:
            rank.send((steps, how))
        return [Block(*rank.recv()) for rank in self._ranks]

    def watched(self, steps: int) -> list[Block]:
        """So many steps that are watched, with what their hooks take without the counting."""
        blocks = zip(self.block(steps, Watching.ON), self._empty, strict=True)
        return [block.without(empty) for block, empty in blocks]

    def pair(self) -> Pair:
        blocks = dict[Watching, list[Block]]()
        before = self._cpu_s()
        for how in random.sample([Watching.ON, Watching.OFF], 2):
            blocks[how] = self.watched(STEPS) if how is Watching.ON else self.block(STEPS, how)
        plain_s, watched_s = (
            max(block.seconds for block in blocks[how]) for how in (Watching.OFF, Watching.ON)
        )
        most = max(blocks[Watching.ON], key=lambda block: block.share)
        of_core = (self._cpu_s() - before) / watched_s
        speed = math.log(plain_s / watched_s)
        return Pair(speed, most.share, most.thread_s / most.seconds, of_core, watched_s / STEPS)

    def _cpu_s(self) -> float:
        times = self._watcher.cpu_times()
        return times.user + times.system


@contextlib.contextmanager
def launched(layers: int = 3, width: int = 1024) -> Iterator[Bench]:
    """Two ranks that have joined, and wait for a block; their model has so many linear layers."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="perfkit-bench-"))
        Path(folder, "train.py").write_text(SCRIPT)
        listener = stack.enter_context(Listener(("localhost", 0)))
        of_script = [str(listener.address[1]), str(layers), str(width)]
        command = [sys.executable, "-m", "benchmarks.ranks", *of_script]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        process = stack.enter_context(subprocess.Popen(command, cwd=folder, env=environment))
        watcher = psutil.Process(process.pid)
        stack.callback(watcher.resume)
        ranks = [stack.enter_context(listener.accept()) for _ in range(RANKS)]
        yield Bench(watcher, ranks)
        for rank in ranks:
            rank.send(None)


def report(launches: int) -> None:
    """Prints what each launch has shown, then all of them with their intervals."""
    pairs = list[Pair]()
    for _ in range(launches):
        with launched() as bench:
            own = [bench.pair() for _ in range(PAIRS)]
        speed = math.exp(fmean(pair.log_ratio for pair in own))
        print(f"watched / not watched: {speed:.4f}; counted {fmean(p.share for p in own):.3%}", flush=True)
        pairs += own
    share = _mean([pair.share for pair in pairs])
    print(f"counted in the slowest rank: {share.centre:.3%} of its steps", end=" ")
    print(f"(95% {share.centre - share.half:.3%} to {share.centre + share.half:.3%}), target 0.5%,", end=" ")
    print(f"of which {fmean(pair.of_thread for pair in pairs):.3%} in the thread that answers")
    taken_s, step_s = fmean(pair.share * pair.step_s for pair in pairs), fmean(pair.step_s for pair in pairs)
    print(f"that is {1e6 * taken_s:.0f} µs in a step of {1e3 * step_s:.1f} ms; longer steps hardly take more")
    print(f"the process that watches: {fmean(pair.of_core for pair in pairs):.2%} of a core")
    mean = _mean([pair.log_ratio for pair in pairs])
    ratio = stats.judged(mean.centre, mean.half, len(pairs))
    print(f"{ratio.ratio:.4f} (95% {ratio.low:.4f} to {ratio.high:.4f}), target 0.995")


def report_hooks() -> None:
    """Prints calls and time of each hook in a step of the slower rank, for a small and a deep model."""
    for layers, width in ((6, 512), (60, 128)):
        with launched(layers, width) as bench:
            found = max(bench.watched(COUNTED), key=lambda block: block.share)
        step_s = found.seconds / COUNTED
        print(f"{layers} layers, a step of {1e3 * step_s:.1f} ms: {found.share:.2%} of it")
        spent = {name: (calls, seconds) for name, (calls, seconds) in found.hooks.items() if calls}
        spent["the thread that answers"] = (0, found.thread_s)
        for name, (calls, seconds) in sorted(spent.items(), key=lambda item: -item[1][1]):
            print(f"{1e6 * seconds / COUNTED:9.1f} µs {calls / COUNTED:6.2f} calls  {name}")


def _mean(values: list[float]) -> stats.Nested:
    """Over the pairs of all launches."""
    sizes = [PAIRS] * (len(values) // PAIRS)
    return stats.nested(np.array(values), sizes, np.ones(len(values)), stats.ONE_PROCESS)


if __name__ == "__main__":
    watch(*sys.argv[1:])
