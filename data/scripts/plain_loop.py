"""Trains an image classifier on JPEG files with a plain loop, the one that most tutorials start from.

    python plain_loop.py --epochs 5

Nothing has to be downloaded: the JPEG files are drawn when it starts. It is slow in ways that are common.
"""

import argparse
import io

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision import transforms


class Photos(Dataset):
    """JPEG files in memory, decoded and resized one by one; the label is the dominant colour."""

    def __init__(self, count, size, seed):
        self.files, self.labels = [], []
        random = np.random.default_rng(seed)
        for number in range(count):
            coarse = random.integers(0, 160, (24, 32, 3), dtype=np.uint8)
            coarse[..., number % 3] += 95
            picture = Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC)
            file = io.BytesIO()
            picture.save(file, "JPEG", quality=90)
            self.files.append(file.getvalue())
            self.labels.append(number % 3)
        self.transform = transforms.Compose([
            transforms.Resize(size + 8),
            transforms.CenterCrop(size),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ])

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        return self.transform(image), self.labels[index]


def block(inputs, outputs):
    convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True))


def make_model():
    blocks = [block(*widths) for widths in ((3, 32), (32, 64), (64, 128))]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 3))


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    right = sum((model(x.to(device)).argmax(1) == y.to(device)).sum().item() for x, y in loader)
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--images", type=int, default=640)
    parser.add_argument("--size", type=int, default=64, help="pixels of an image's side")
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    photos = Photos(args.images, args.size, seed=1)
    order = RandomSampler(photos, generator=torch.Generator().manual_seed(0))  # the same with workers
    train_loader = DataLoader(photos, args.batch_size, sampler=order)
    test_loader = DataLoader(Photos(args.images // 10, args.size, seed=2), args.batch_size)
    model = make_model().to(device)
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)

    for epoch in range(args.epochs):
        model.train()
        running = 0.0
        for images, labels in train_loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            running += loss.item()
        scheduler.step()
        share = accuracy(model, test_loader, device)
        print(f"epoch {epoch}: loss {running / len(train_loader):.4f}, accuracy {share:.1%}", flush=True)
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
