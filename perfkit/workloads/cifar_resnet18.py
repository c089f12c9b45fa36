"""The article's workload: ResNet-18 on a made-up CIFAR-10, images enlarged to 224 × 224.

Source of the set-up: the PyTorch profiler tutorial's model and data, with random images in place of CIFAR-10.
"""

from __future__ import annotations

import os

import numpy as np
import torch
import torchvision.transforms as T
from PIL import Image
from torch.nn import functional
from torch.utils.data import Dataset
from torchvision.models import ResNet18_Weights, resnet18


class FakeCIFAR(Dataset):
    """Random images, uint8[samples, 32, 32, 3], with labels 0 to 9; one sample at a time, through PIL."""

    def __init__(self, samples, transform):
        random = np.random.default_rng(0)
        self.images = random.integers(0, 256, (samples, 32, 32, 3), dtype=np.uint8)
        self.labels = random.integers(0, 10, samples).tolist()
        self.transform = transform

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.transform(Image.fromarray(self.images[index])), self.labels[index]


class BatchedFakeCIFAR(FakeCIFAR):
    """The same images, a whole batch at a time, without PIL."""

    def __getitems__(self, indices):
        images = torch.from_numpy(self.images[indices]).permute(0, 3, 1, 2).contiguous()
        return self.transform(images), torch.tensor([self.labels[index] for index in indices])


class CifarResNet18:
    """Data set, model, loss and optimizer of the article.

    Args:
        image_size: side of the images the model sees.
        samples: images in the data set.
    """

    offers = frozenset({"uint8_copy", "device_resize", "batched_fetch", "resident"})
    presets = {
        "smoke": {"image_size": 48, "samples": 256},
        "quick": {"image_size": 64, "samples": 10_000},
        "paper": {"image_size": 224, "samples": 10_000},
    }

    def __init__(self, image_size=224, samples=10_000):
        self.image_size = image_size
        self.samples = samples
        self.weights = "random initialisation"

    def dataset(self, recipe):
        if recipe.batched_fetch or recipe.resident:
            return BatchedFakeCIFAR(self.samples, self.batch_transform(recipe))
        steps = []
        if not recipe.device_resize:
            steps.append(T.Resize(self.image_size))
        if recipe.uint8_copy:
            steps.append(T.PILToTensor())
        else:
            steps.append(T.ToTensor())
            steps.append(T.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
        return FakeCIFAR(self.samples, T.Compose(steps))

    def batch_transform(self, recipe):
        steps = []
        if not recipe.device_resize:
            steps.append(T.Resize(self.image_size, antialias=True))
        if not recipe.uint8_copy:
            steps.append(T.ConvertImageDtype(torch.float32))
            steps.append(T.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)))
        return T.Compose(steps)

    def prepare(self, images, recipe):
        if recipe.uint8_copy:
            images = (images.to(torch.float32) / 255 - 0.5) / 0.5
        if recipe.device_resize:
            images = functional.interpolate(images, size=self.image_size, mode="bilinear")
        return images

    def model(self):
        model = resnet18(weights=None)
        weights = ResNet18_Weights.IMAGENET1K_V1
        file = os.path.join(torch.hub.get_dir(), "checkpoints", os.path.basename(weights.url))
        if os.path.exists(file):
            model.load_state_dict(torch.load(file, weights_only=True))
            self.weights = "ImageNet weights"
        return model

    def loss(self, outputs, targets):
        return functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters, **implementation):
        return torch.optim.SGD(parameters, lr=0.001, momentum=0.9, **implementation)
