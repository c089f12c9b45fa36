"""What perfkit's harness costs a training, and what watching a script costs it: ratio of samples/s.

    python -m benchmarks.overhead harness
    python -m benchmarks.overhead watch
    python -m benchmarks.overhead ranks
    python -m benchmarks.overhead hooks

Target: at least 0.99. The first two are measured against the article's loop written by hand. Equal processes
differ by about 2%: hence several pairs of fresh ones. The rounds of a pair are interleaved; in a round each
side takes the same number of steps, while the other waits. `benchmarks.ranks` has the last two: `hooks` takes
a minute, and counts the calls and the time of each hook in a step of a rank, for a small and a deep model.
"""

import argparse
import contextlib
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Listener
from pathlib import Path

import numpy as np

from benchmarks import ranks
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.errors import PerfkitError
from perfkit.process.child import Child
from perfkit.recipe import Recipe
from perfkit.results import stats
from perfkit.results.stats import Values

ROUNDS = 6
BATCH, SIZE, STEPS = 8, 32, 50
BY_HAND = f"""
import sys, time
from multiprocessing.connection import Client
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

def batches():
    while True:
        yield from loader

source = batches()
with Client(("localhost", int(sys.argv[1]))) as connection:
    while steps := connection.recv():
        start = time.perf_counter()
        for _ in range(steps):
            inputs, labels = next(source)
            loss = criterion(model(inputs), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        connection.send({BATCH} * steps / (time.perf_counter() - start))
"""
Rate = Callable[[], float]
"""Lets a process take some steps: samples/s."""


@contextlib.contextmanager
def asked(listener: Listener) -> Iterator[Rate]:
    """The script that connects; it ends with the connection, and so with this process."""
    with listener.accept() as connection:

        def rate() -> float:
            connection.send(STEPS)
            return float(connection.recv())

        yield rate


@contextlib.contextmanager
def by_hand(folder: Path) -> Iterator[Rate]:
    """The loop in a process of its own."""
    with Listener(("localhost", 0)) as listener:
        command = [sys.executable, "train.py", str(listener.address[1])]
        with subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL), asked(listener) as rate:
            yield rate


@contextlib.contextmanager
def harness(folder: Path) -> Iterator[Rate]:
    """The same training in a measuring process."""
    with Child() as child:
        what = {"workload": "cifar_resnet18", "preset": "quick", "options": {"image_size": SIZE}}
        child.ask("describe", device="cpu", **what)
        recipe = Recipe(batch_size=BATCH)
        child.ask("train", recipe=recipe, seed=0, loss_steps=2, warmup_s=3)
        yield lambda: child.ask("slice", samples=BATCH * STEPS, seconds=0.0).samples_per_s


@contextlib.contextmanager
def watch(folder: Path) -> Iterator[Rate]:
    """The loop under `perfkit watch`."""
    with Listener(("localhost", 0)) as listener:
        watched = WatchedScript(Launch(str(folder / "train.py"), (str(listener.address[1]),))).start()

        def observe() -> None:
            with contextlib.suppress(PerfkitError):  # it is ended meanwhile
                watched.ask("observe", steps=10**9)

        try:
            threading.Thread(target=observe, daemon=True).start()
            with asked(listener) as rate:
                yield rate
        finally:
            watched.stop()


def pair(side: Callable[[Path], contextlib.AbstractContextManager[Rate]]) -> tuple[Values, Values]:
    """samples/s of fresh processes, a round each: one side, and the loop by hand."""
    with tempfile.TemporaryDirectory(prefix="perfkit-bench-") as name:
        folder = Path(name)
        Path(folder, "train.py").write_text(BY_HAND)
        with side(folder) as own, by_hand(folder) as other:
            own(), other()  # warm-up
            measured: dict[Rate, list[float]] = {own: [], other: []}
            for _ in range(ROUNDS):
                for rate in random.sample([own, other], 2):
                    measured[rate].append(rate())
        return np.array(measured[own]), np.array(measured[other])


def main() -> None:
    """Prints the ratio of every pair, then of all of them with its interval."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", choices=["harness", "watch", "ranks", "hooks"])
    parser.add_argument("--pairs", type=int, default=8)
    options = parser.parse_args()
    if options.side == "ranks":
        ranks.report(options.pairs)
        return
    if options.side == "hooks":
        ranks.report_hooks()
        return
    pairs = []
    for _ in range(options.pairs):
        pairs.append(pair({"harness": harness, "watch": watch}[options.side]))
        own, other = pairs[-1]
        print(f"{options.side} / by hand: {np.exp(np.log(own / other).mean()):.4f}", flush=True)
    logs = np.array([np.log(own / other).mean() for own, other in pairs])
    mean = stats.nested(logs, [1] * logs.size, np.ones(logs.size))
    ratio = stats.judged(mean.centre, mean.half, logs.size)
    print(f"{ratio.ratio:.4f} (95% {ratio.low:.4f} to {ratio.high:.4f}), target 0.99")


if __name__ == "__main__":
    main()
