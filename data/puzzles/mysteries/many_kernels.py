"""The timeline has hundreds of tiny kernels in each step, more with each layer, and none of them is a layer's."""

import torch
from torch import nn
from torch.nn import functional as F

DECAY = 1e-3


def train(epochs=500):
    torch.manual_seed(0)
    inputs, labels = torch.randn(256, 32), torch.randint(32, (256,))
    model = nn.Sequential(*[layer for _ in range(12) for layer in (nn.Linear(32, 32), nn.ReLU())])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(epochs):
        for batch, targets in zip(inputs.split(64), labels.split(64)):
            loss = F.cross_entropy(model(batch), targets)
            losses.append(loss.detach())
            penalty = sum(weight.square().sum() for weight in model.parameters())
            (loss + DECAY / 2 * penalty).backward()
            optimizer.step()
            optimizer.zero_grad()
    return losses


if __name__ == "__main__":
    train()
