"""The speed of light of capstone.py: its model trains on a batch that is already there, and nothing else.

No fetching, no printing, no metrics. To beat this, make the step itself faster.
"""

import torch
from capstone import BATCH, DEVICE, Photos, make_model
from torch import nn
from torch.utils.data import default_collate


def main():
    dataset, model = Photos(BATCH), make_model().to(DEVICE)
    images, labels = default_collate([dataset[index] for index in range(BATCH)])
    images, labels = images.to(DEVICE), labels.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    criterion = nn.CrossEntropyLoss()
    while True:
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
