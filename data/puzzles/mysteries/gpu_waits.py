"""On a GPU, the device is idle after each step. Nothing is printed, and there is no `.item()`."""

import logging

import torch
from torch import nn
from torch.nn import functional as F

log = logging.getLogger("train")


def train(epochs=500):
    torch.manual_seed(0)
    images, labels = torch.randn(512, 64), torch.randint(10, (512,))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for epoch in range(epochs):
        for batch, targets in zip(images.split(64), labels.split(64)):
            outputs = model(batch)
            loss = F.cross_entropy(outputs, targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            log.debug(f"epoch {epoch}: loss {loss}, outputs {outputs}")
    return losses


if __name__ == "__main__":
    train()
