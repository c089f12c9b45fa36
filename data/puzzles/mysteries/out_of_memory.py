"""Training fits into the memory. The validation after each epoch does not, once its set is larger."""

import torch
from torch import nn
from torch.nn import functional as F


def validate(model, batches):
    model.eval()
    total = 0
    for inputs, targets in batches:
        total += F.cross_entropy(model(inputs), targets)
    model.train()
    return total / len(batches)


def train(epochs=500):
    torch.manual_seed(0)
    batches = [(torch.randn(64, 16), torch.randint(4, (64,))) for _ in range(16)]
    model = nn.Sequential(nn.Linear(16, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(epochs):
        for inputs, targets in batches[:8]:
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(validate(model, batches[8:]).detach())
    return losses


if __name__ == "__main__":
    train()
