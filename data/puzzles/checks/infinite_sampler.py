import itertools
import time

import torch

from bench import require
from judged import endless, proof


def take(count, seed=1):
    return [int(i) for i in itertools.islice(iter(endless(11, torch.Generator().manual_seed(seed))), count)]


order = take(55)
require(len(order) == 55, f"The order ended after {len(order)} samples: it must go on")
epochs = [order[at : at + 11] for at in range(0, 55, 11)]
require(
    all(sorted(epoch) == list(range(11)) for epoch in epochs),
    "An epoch does not have each sample exactly once",
)
require(len(set(map(tuple, epochs))) == 5, "Epochs repeat the same order")
torch.manual_seed(time.time_ns() % 2**31)
again = take(55)
require(
    again == order and take(55, 2) != order,
    "The order does not come from the given generator: pass it to `randperm`",
)
require(not hasattr(endless(11, torch.Generator()), "__len__"), "An order without end has no length")
proof("five epochs, each with every sample once, in five orders")
