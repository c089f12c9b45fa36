import torch
from torch.nn import functional as F

from bench import data, network, one_rank, require, same
from judged import proof, train_step

steps = [data(3), data(3)]
with one_rank(network()) as (parallel, averaged):
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    counts = []
    for parts in steps:
        averaged.clear()
        train_step(parallel, optimizer, parts)
        counts.append(len(averaged))
    weights = [w.detach().clone() for w in parallel.parameters()]
reference = network()
optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
for parts in steps:
    for inputs, targets in parts:
        (F.cross_entropy(reference(inputs), targets) / len(parts)).backward()
    optimizer.step()
    optimizer.zero_grad()
require(max(counts) > 0, "The gradients are never averaged: each rank would train a different model")
require(
    max(counts) == 1,
    f"The gradients are averaged {max(counts)} times in a step of 3 parts: once, with the last part, is enough. Is the forward pass inside `no_sync`, too?",
)
same(
    weights,
    [w.detach() for w in reference.parameters()],
    "It trains differently: the weights are not those of the mean loss of all parts",
    rtol=1e-4,
    atol=1e-6,
)
proof("gradients are averaged once in a step of 3 parts")
