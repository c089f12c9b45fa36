"""The first steps are fast, and each epoch takes longer than the one before."""

import torch
from torch import nn
from torch.nn import functional as F


def note_activations(layer, norms):
    layer.register_forward_hook(lambda module, inputs, output: norms.append(output.detach().norm()))


def train(epochs=500):
    torch.manual_seed(0)
    inputs, labels = torch.randn(256, 64), torch.randint(10, (256,))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, norms = [], []
    for _ in range(epochs):
        note_activations(model[0], norms)
        for batch, targets in zip(inputs.split(64), labels.split(64)):
            loss = F.cross_entropy(model(batch), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return losses


if __name__ == "__main__":
    train()
