"""My training script. Run it: python my_train.py"""

import torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms as T
from torchvision.datasets import ImageFolder

from perfkit.workloads.files import photo_folder  # JPEG files, made once
from perfkit.workloads.photos import small_net


def main():
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = small_net(classes=8).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    transform = T.Compose([T.Resize(96), T.CenterCrop(96), T.ToTensor(), T.Normalize(0.5, 0.5)])
    dataset = ImageFolder(photo_folder(256), transform)
    dataset.samples *= 40  # a long epoch
    loader = DataLoader(dataset, batch_size=32, shuffle=True, drop_last=True)
    for epoch in range(10):
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.4f}")


if __name__ == "__main__":  # workers import this file where processes are not forked
    main()
