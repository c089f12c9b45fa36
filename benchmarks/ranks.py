"""What watching several ranks costs: two ranks that are watched in some blocks of steps and not in others.

    python -m benchmarks.overhead ranks

Equal processes differ by more than there is to be seen, so both are measured in the same ranks, in turn. In a
block without watching, the process that watches is suspended, the hooks hand on at once, and no thread
looks at a stack. What keeps files from being changed stays; it does nothing in a step.
"""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import numpy as np
import psutil

from perfkit.additions.ranks.launch import launch_of
from perfkit.additions.ranks.started import WatchedRanks
from perfkit.results import stats

ROOT = Path(__file__).parents[1]
RANKS = 2
STEPS = 200  # of a block: whoever watches looks at the tree every two seconds, and once more as it goes on
PAIRS = 6  # of blocks in a launch
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
layers = [nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)]
model = DistributedDataParallel(nn.Sequential(*layers))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
source = iter(loader)

with Client(("localhost", int(sys.argv[1]))) as connection:
    while block := connection.recv():
        steps, is_watched = block
        switched.switch(is_watched)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            inputs, targets = next(source)
            loss = criterion(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        connection.send(time.perf_counter() - start)
dist.destroy_process_group()
"""


class SwitchedRanks(WatchedRanks):
    """Ranks that switch their watching."""

    watcher = "benchmarks.switched:watch"


def watch(port: str) -> None:
    """Watches the ranks until they end."""
    how = ["--standalone", "--nproc-per-node", str(RANKS), "train.py", port]
    with SwitchedRanks(launch_of(["torchrun", *how])) as launched:
        launched.watch(0.0, whole=True)


class Bench:
    """A launch: its ranks, and the process that watches them."""

    def __init__(self, watcher: psutil.Process, ranks: list[Connection]) -> None:
        self._watcher = watcher
        self._ranks = ranks

    def block_s(self, steps: int, is_watched: bool) -> float:
        """Seconds of the slowest rank for so many steps."""
        if is_watched:
            self._watcher.resume()
        else:
            self._watcher.suspend()
        for rank in self._ranks:
            rank.send((steps, is_watched))
        return max(float(rank.recv()) for rank in self._ranks)

    def log_ratio(self) -> float:
        """The logarithm of the ratio of two blocks, one after the other: the speed watched / not watched."""
        order = random.sample([True, False], 2)
        seconds = {is_watched: self.block_s(STEPS, is_watched) for is_watched in order}
        return float(np.log(seconds[False] / seconds[True]))


@contextlib.contextmanager
def launched() -> Iterator[Bench]:
    """Two ranks that have joined, and wait for a block."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="perfkit-bench-"))
        Path(folder, "train.py").write_text(SCRIPT)
        listener = stack.enter_context(Listener(("localhost", 0)))
        command = [sys.executable, "-m", "benchmarks.ranks", str(listener.address[1])]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        process = stack.enter_context(subprocess.Popen(command, cwd=folder, env=environment))
        watcher = psutil.Process(process.pid)
        stack.callback(watcher.resume)
        ranks = [stack.enter_context(listener.accept()) for _ in range(RANKS)]
        yield Bench(watcher, ranks)
        for rank in ranks:
            rank.send(None)


def report(launches: int) -> None:
    """Prints the ratio of each launch, then that of all with its interval."""
    logs = list[float]()
    for _ in range(launches):
        with launched() as bench:
            bench.block_s(WARMUP, True)
            logs += [bench.log_ratio() for _ in range(PAIRS)]
        print(f"watched / not watched: {np.exp(np.mean(logs[-PAIRS:])):.4f}", flush=True)
    sizes = [PAIRS] * launches
    mean = stats.nested(np.array(logs), sizes, np.ones(len(logs)), stats.ONE_PROCESS)
    ratio = stats.judged(mean.centre, mean.half, len(logs))
    print(f"{ratio.ratio:.4f} (95% {ratio.low:.4f} to {ratio.high:.4f}), target 0.995")


if __name__ == "__main__":
    watch(sys.argv[1])
