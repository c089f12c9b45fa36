"""perfkit's harness against the article's loop written by hand, interleaved in one run: ratio of samples/s.

    python -m benchmarks.harness_overhead [--rounds 12] [--image-size 64]

Target: at least 0.99. Both train ResNet-18 on the same made-up CIFAR-10 with the same settings.
"""

import argparse
import random
import subprocess
import sys

import numpy as np

from perfkit.process.child import Child
from perfkit.recipe import Recipe
from perfkit.results import stats
from perfkit.worker.messages import Block, Description, Trained

BATCH = 32
BY_HAND = """
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

transform = T.Compose([T.Resize(SIZE), T.ToTensor(), T.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))])
loader = torch.utils.data.DataLoader(FakeCIFAR(transform), batch_size=BATCH, shuffle=True, drop_last=True)
model = torchvision.models.resnet18()
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
model.train()

def batches():
    while True:
        yield from loader

source = batches()
for line in sys.stdin:
    steps = int(line)
    start = time.perf_counter()
    for _ in range(steps):
        inputs, labels = next(source)
        loss = criterion(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(BATCH * steps / (time.perf_counter() - start), flush=True)
"""


def main() -> None:
    """Alternates blocks of both and prints the ratio."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    program = BY_HAND.replace("SIZE", str(options.image_size)).replace("BATCH", str(BATCH))
    pipe = subprocess.PIPE
    with (
        subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True) as hand,
        Child() as child,
    ):
        to_hand, from_hand = hand.stdin, hand.stdout
        assert to_hand is not None
        assert from_hand is not None

        def by_hand() -> float:
            print(options.steps, file=to_hand, flush=True)
            return float(from_hand.readline())

        def harness() -> float:
            return child.ask("block", Block, samples=BATCH * options.steps, settle=False).samples_per_s

        size = {"image_size": options.image_size}
        child.ask(
            "describe", Description, workload="cifar_resnet18", preset="quick", options=size, device="cpu"
        )
        recipe = Recipe(batch_size=BATCH).to_dict()
        child.ask("train", Trained, recipe=recipe, seed=0, loss_steps=2, warmup_s=3)
        by_hand(), harness()
        rates: dict[str, list[float]] = {"by_hand": [], "harness": []}
        for _ in range(options.rounds):
            for side in random.sample([by_hand, harness], 2):
                rates[side.__name__].append(side())
        to_hand.close()
    ratio = stats.ratio(np.array(rates["harness"]), np.array(rates["by_hand"]), paired=True)
    print(f"by hand {np.median(rates['by_hand']):.1f} samples/s, harness {np.median(rates['harness']):.1f}")
    print(f"harness / by hand: {ratio.ratio:.3f} ({ratio.low:.3f}-{ratio.high:.3f}), {ratio.verdict}")


if __name__ == "__main__":
    main()
