# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Solution: the capstone
#
# The ten faults, in the order of the file, and why each costs time. The task: [the capstone](capstone.ipynb).
#
# 1. Every access decodes a JPEG file again. 512 small images fit in memory: decode each once, when the script starts. With a million images, workers would decode them while the model trains.
# 2. Pixels are normalised one sample at a time, in float64: twice the bytes, and a Python call each.
# 3. `__getitem__` fetches sample by sample, then the loader stacks. `__getitems__` takes the batch in one indexing operation.
# 4. The model sees 4 samples at a time, sixteen times for a step: the overhead of operators is paid sixteen times.
# 5. `.item()` for every part, twice: on a GPU each one waits for all kernels before it.
# 6. `print` for every part, with `flush`: a system call in the inner loop.
# 7. Accuracy in every step, by a second pass through the model.
# 8. A copy of all weights whenever the loss of a step is the best so far; a loader and a criterion made again and again.
# 9. The optimizer loops over parameters (`foreach=False`), and fills gradients with zeros.
# 10. `set_detect_anomaly(True)`, left on after a search for NaN: it checks every operator of the backward pass.
#
# With the images in memory nothing is left to fetch, so workers would not help. Whether 16 bits or `torch.compile` help depends on the machine: measure.

# %%
"""capstone.py without its ten faults."""

import io

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Photos(Dataset):
    """JPEG files in memory; the label is the dominant colour."""

    def __init__(self, count=512, seed=1):
        self.files, self.labels = [], []
        random = np.random.default_rng(seed)
        for number in range(count):
            coarse = random.integers(0, 200, (12, 16, 3), dtype=np.uint8)
            coarse[..., number % 3] += 55
            file = io.BytesIO()
            Image.fromarray(coarse).resize((320, 240), Image.Resampling.BICUBIC).save(
                file, "JPEG", quality=90
            )
            self.files.append(file.getvalue())
            self.labels.append(number % 3)

        pixels = [self.decoded(number) for number in range(count)]
        self.images, self.labels = torch.stack(pixels), torch.tensor(self.labels)

    def decoded(self, index):
        image = Image.open(io.BytesIO(self.files[index])).convert("RGB")
        image = image.resize((48, 48), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
        return (pixels - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)

    def __len__(self):
        return len(self.files)

    def __getitems__(self, indices):
        return self.images[indices], self.labels[indices]


def make_model():
    """Three convolutions; without batch norm, so that parts of a batch add up to the batch."""
    torch.manual_seed(0)
    layers = []
    for inputs, outputs in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 3))


def main(epochs=1000):
    dataset, model = Photos(), make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    order = torch.Generator().manual_seed(0)
    criterion = nn.CrossEntropyLoss()
    loader = DataLoader(dataset, BATCH, shuffle=True, drop_last=True, generator=order, collate_fn=lambda b: b)
    for epoch in range(epochs):
        for images, labels in loader:
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch}: loss {loss.item():.4f}", flush=True)


if __name__ == "__main__" and "__file__" in globals():
    main()
