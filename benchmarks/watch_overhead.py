"""A script that is watched against the same script alone, interleaved: ratio of samples/s.

    python -m benchmarks.watch_overhead

Target: at least 0.99. Both processes time their own steps; the one that is not measured is stopped (SIGSTOP).
Equal processes differ by more than that (about 2%, with the allocator settled): hence several pairs of them.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from perfkit.errors import PerfkitError
from perfkit.process.child import end_tree
from perfkit.results import stats
from perfkit.results.stats import Values
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import Observation
from perfkit.scripts.watched import WatchedScript
from perfkit.worker.messages import Block

PAIRS, ROUNDS, SECONDS = 8, 4, 1.0
CHUNK = 5
SCRIPT = f"""
import sys, time, torch, torchvision
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images = TensorDataset(torch.randn(2048, 3, 32, 32), torch.randint(10, (2048,)))
loader = DataLoader(images, batch_size=4, shuffle=True)
model = torchvision.models.resnet18(num_classes=10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
steps, start = 0, time.perf_counter()
while True:
    for inputs, labels in loader:
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps % {CHUNK} == 0:
            now = time.perf_counter()
            print(now - start, flush=True, file=open(sys.argv[1], "a"))
            start = now
"""


class Side:
    """One process of the script, and the times of its chunks of steps."""

    def __init__(self, pid: int, file: Path) -> None:
        self.pid = pid
        self._file = file

    @property
    def chunks(self) -> list[float]:
        """Seconds of each chunk until now, as the script has written them."""
        return [float(line) for line in self._file.read_text().split()] if self._file.exists() else []

    def rate(self, seconds: float) -> float:
        """Steps per second while it runs for so long; the chunk with the pause in it is left out."""
        before = len(self.chunks)
        os.killpg(self.pid, signal.SIGCONT)
        while len(self.chunks) < before + 3:
            time.sleep(seconds)
        os.killpg(self.pid, signal.SIGSTOP)
        own = self.chunks[before + 1 :]
        return CHUNK * len(own) / sum(own)


def _ask(watched: WatchedScript) -> None:
    with contextlib.suppress(PerfkitError):  # it is ended within this command
        watched.ask("observe", tuple[Observation, Block | None], steps=10**9)


def rates(folder: str) -> tuple[Values, Values]:
    """Steps/s of a pair of fresh processes, watched and alone, a round each."""
    file = Path(tempfile.mkstemp(dir=folder)[1])
    alone = subprocess.Popen([sys.executable, "train.py", str(file)], cwd=folder, start_new_session=True)
    watched = WatchedScript(Launch("train.py", (str(file),), folder=Path(folder)))
    mirrored = watched.folder.joinpath("files", *file.resolve().parts[1:])
    sides = Side(watched.pids[0], mirrored), Side(alone.pid, file)
    try:
        threading.Thread(target=_ask, args=(watched,), daemon=True).start()
        while not all(side.chunks for side in sides):
            time.sleep(0.1)
        for side in sides:
            os.killpg(side.pid, signal.SIGSTOP)
        measured: dict[Side, list[float]] = {side: [] for side in sides}
        for _ in range(ROUNDS):
            for side in random.sample(sides, 2):
                measured[side].append(side.rate(SECONDS))
    finally:
        for side in sides:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(side.pid, signal.SIGCONT)
        end_tree(alone.pid)
        watched.stop()
    return np.array(measured[sides[0]]), np.array(measured[sides[1]])


def main() -> None:
    """Prints the ratio of every pair, then of all of them with its interval."""
    pairs = []
    with tempfile.TemporaryDirectory(prefix="perfkit-bench-") as folder:
        Path(folder, "train.py").write_text(SCRIPT)
        for _ in range(PAIRS):
            pairs.append(rates(folder))
            own, other = pairs[-1]
            print(f"watched / alone: {stats.geometric_mean(own / other).value:.4f}", flush=True)
    ratio = stats.ratio_over_pairs(pairs)
    print(f"watched / alone: {ratio.ratio:.4f} (95% {ratio.low:.4f} to {ratio.high:.4f}), target 0.99")


if __name__ == "__main__":
    main()
