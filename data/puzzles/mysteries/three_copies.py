"""On a GPU, inputs and labels are copied in each step. The timeline shows three copies."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.linspace(0.5, 1.5, 48)
        self.layers = nn.Sequential(nn.Linear(48, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, inputs):
        return self.layers(inputs * self.scale.to(inputs.device))


def train(epochs=500, device="cpu"):
    torch.manual_seed(0)
    inputs, labels = torch.randn(512, 48), torch.randint(10, (512,))
    model = Model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(epochs):
        for batch, targets in zip(inputs.split(64), labels.split(64)):
            outputs = model(batch.to(device, non_blocking=True))
            loss = F.cross_entropy(outputs, targets.to(device, non_blocking=True))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    return losses


if __name__ == "__main__":
    train(device="cuda" if torch.cuda.is_available() else "cpu")
