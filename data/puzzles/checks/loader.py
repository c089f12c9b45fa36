import os

from torch.utils.data import DataLoader

from bench import Numbers, require
from judged import make_loader, proof

loader = make_loader(Numbers(103), 8)
require(isinstance(loader, DataLoader), "Return a DataLoader")
epochs = []
for _ in range(2):
    batches = list(loader)
    epochs.append([(int(n), int(pid)) for numbers, pids in batches for n, pid in zip(numbers, pids)])
    require(
        all(len(numbers) == 8 for numbers, _ in batches),
        "Not every batch has 8 samples: drop the incomplete last one",
    )
    indices = [n for n, _ in epochs[-1]]
    require(
        len(set(indices)) == len(indices) == 96,
        f"An epoch has {len(set(indices))} different samples and should have 96 of 103",
    )
require(
    [n for n, _ in epochs[0]] != sorted(n for n, _ in epochs[0]),
    "The samples come in the order of the data set: shuffle them",
)
require([n for n, _ in epochs[0]] != [n for n, _ in epochs[1]], "Both epochs have the same order")

pids = [{pid for _, pid in epoch} for epoch in epochs]
require(
    os.getpid() not in pids[0], "The training process fetches the samples itself: give the loader workers"
)
require(len(pids[0]) >= 2, "One worker fetches everything: give the loader two or more")
require(
    pids[0] == pids[1],
    "The second epoch was fetched by different processes: starting new ones takes time in each epoch",
)
proof(f"{len(pids[0])} worker processes fetched both epochs, the same ones")
