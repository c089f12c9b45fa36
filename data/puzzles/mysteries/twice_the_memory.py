"""A colleague trains the same network in half the memory, and on a GPU many times as fast."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def samples(count=1024):
    random = np.random.default_rng(0)
    values, labels = random.normal(3, 2, (count, 256)), random.integers(0, 10, count)
    values = (values - values.mean(axis=0)) / values.std(axis=0)
    return torch.from_numpy(values), torch.from_numpy(labels)


def train(epochs=500):
    torch.manual_seed(0)
    inputs, labels = samples()
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)).to(inputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(epochs):
        for batch, targets in zip(inputs.split(128), labels.split(128)):
            loss = F.cross_entropy(model(batch), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return losses


if __name__ == "__main__":
    train()
