"""What perfkit's harness costs a training, and what watching a script costs it: ratio of samples/s.

    python -m benchmarks.overhead harness
    python -m benchmarks.overhead watch

Target: at least 0.99. Either is measured against the article's loop written by hand. Equal processes differ
by about 2%: hence several pairs of fresh ones. The rounds of a pair are interleaved; a script that is not
measured is stopped (SIGSTOP).
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from perfkit.errors import PerfkitError
from perfkit.process.child import Child, end_tree
from perfkit.recipe import Recipe
from perfkit.results import stats
from perfkit.results.stats import Values
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import Observation
from perfkit.scripts.watched import WatchedScript
from perfkit.worker.messages import Block, Description, Trained

ROUNDS, SECONDS = 6, 1.0
BATCH, SIZE, CHUNK = 8, 32, 5
BY_HAND = f"""
import sys, time
import numpy as np, torch, torchvision
import torchvision.transforms as T
from PIL import Image

class FakeCIFAR(torch.utils.data.Dataset):
    def __init__(self, transform):
        self.data = np.random.randint(low=0, high=256, size=(10000, 32, 32, 3), dtype=np.uint8)
        self.targets = np.random.randint(low=0, high=10, size=(10000)).tolist()
        self.transform = transform
    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.data[index])), self.targets[index]
    def __len__(self):
        return len(self.data)

transform = T.Compose([T.Resize({SIZE}), T.ToTensor(), T.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])
loader = torch.utils.data.DataLoader(FakeCIFAR(transform), batch_size={BATCH}, shuffle=True, drop_last=True)
model = torchvision.models.resnet18()
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
model.train()
steps, start = 0, time.perf_counter()
while True:
    for inputs, labels in loader:
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
        if steps % {CHUNK} == 0:
            now = time.perf_counter()
            print(now - start, flush=True, file=open(sys.argv[1], "a"))
            start = now
"""
Rate = Callable[[], float]
"""Lets a process train for a while: samples/s."""


class Script:
    """A process of the loop by hand, which is stopped unless it is measured."""

    def __init__(self, pid: int, file: Path) -> None:
        self._pid, self._file = pid, file
        while not self._chunks():
            time.sleep(0.1)
        os.killpg(pid, signal.SIGSTOP)

    def _chunks(self) -> list[float]:
        """Seconds of each chunk of steps until now, as the script has written them."""
        return [float(line) for line in self._file.read_text().split()] if self._file.exists() else []

    def rate(self) -> float:
        """samples/s; the chunk with the pause in it is left out."""
        before = len(self._chunks())
        os.killpg(self._pid, signal.SIGCONT)
        while len(self._chunks()) < before + 3:
            time.sleep(SECONDS)
        os.killpg(self._pid, signal.SIGSTOP)
        own = self._chunks()[before + 1 :]
        return BATCH * CHUNK * len(own) / sum(own)


@contextlib.contextmanager
def by_hand(folder: Path) -> Iterator[Rate]:
    """The loop in a process of its own."""
    file = folder / "by_hand"
    command = [sys.executable, "train.py", str(file)]
    process = subprocess.Popen(command, cwd=folder, start_new_session=True)
    try:
        yield Script(process.pid, file).rate
    finally:
        end_tree(process.pid)


@contextlib.contextmanager
def harness(folder: Path) -> Iterator[Rate]:
    """The same training in a measuring process."""
    with Child() as child:
        what = {"workload": "cifar_resnet18", "preset": "quick", "options": {"image_size": SIZE}}
        child.ask("describe", Description, device="cpu", **what)
        recipe = Recipe(batch_size=BATCH).to_dict()
        child.ask("train", Trained, recipe=recipe, seed=0, loss_steps=2, warmup_s=3)
        samples = 10 * BATCH * CHUNK
        yield lambda: child.ask("block", Block, samples=samples, settle=False).samples_per_s


@contextlib.contextmanager
def watch(folder: Path) -> Iterator[Rate]:
    """The loop under `perfkit watch`."""
    file = (folder / "watched").resolve()
    watched = WatchedScript(Launch("train.py", (str(file),), folder=folder))

    def observe() -> None:
        with contextlib.suppress(PerfkitError):  # it is ended meanwhile
            watched.ask("observe", tuple[Observation, Block | None], steps=10**9)

    try:
        threading.Thread(target=observe, daemon=True).start()
        pid = watched.pids[0]
        yield Script(pid, watched.folder.joinpath("files", *file.parts[1:])).rate
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGCONT)
        watched.stop()


def pair(side: Callable[[Path], contextlib.AbstractContextManager[Rate]]) -> tuple[Values, Values]:
    """samples/s of fresh processes, a round each: one side, and the loop by hand."""
    with tempfile.TemporaryDirectory(prefix="perfkit-bench-") as name:
        folder = Path(name)
        Path(folder, "train.py").write_text(BY_HAND)
        with side(folder) as own, by_hand(folder) as other:
            measured: dict[Rate, list[float]] = {own: [], other: []}
            for _ in range(ROUNDS):
                for rate in random.sample([own, other], 2):
                    measured[rate].append(rate())
        return np.array(measured[own]), np.array(measured[other])


def main() -> None:
    """Prints the ratio of every pair, then of all of them with its interval."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["harness", "watch"])
    parser.add_argument("--pairs", type=int, default=8)
    options = parser.parse_args()
    pairs = []
    for _ in range(options.pairs):
        pairs.append(pair({"harness": harness, "watch": watch}[options.side]))
        own, other = pairs[-1]
        print(f"{options.side} / by hand: {stats.geometric_mean(own / other).value:.4f}", flush=True)
    ratio = stats.ratio_over_pairs(pairs)
    print(f"{ratio.ratio:.4f} (95% {ratio.low:.4f} to {ratio.high:.4f}), target 0.99")


if __name__ == "__main__":
    main()
