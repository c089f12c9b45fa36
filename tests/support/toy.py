"""A workload small enough for tests, and ones that go wrong, each in its own way."""

import os
import signal
import subprocess
import time

import torch
from torch import nn
from torch.utils.data import Dataset


class Points(Dataset):
    """Points on a plane, learnable."""

    def __init__(self, count=256):
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(count, 16, generator=generator)
        self.targets = (self.inputs[:, 0] > 0).long()

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.inputs[index], self.targets[index]


class Toy:
    """The smallest workload there is."""

    def __init__(self, delay_s=0.0, samples=256):
        self.delay_s, self.samples = delay_s, samples

    def dataset(self, recipe):
        return Points(self.samples)

    def model(self):
        return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2))

    def loss(self, outputs, targets):
        time.sleep(self.delay_s)
        return nn.functional.cross_entropy(outputs, targets)

    def optimizer(self, parameters, **implementation):
        return torch.optim.SGD(parameters, lr=0.1, **implementation)


class StartsOther(Toy):
    """It starts another program, in a session of its own."""

    def model(self):
        subprocess.Popen(["sleep", "60"], start_new_session=True)
        return super().model()


class _RaisingPoints(Points):
    def __getitem__(self, index):
        raise ValueError("sample 7 is broken")


class RaisingData(Toy):
    """Its data set raises."""

    def dataset(self, recipe):
        return _RaisingPoints()


class _DyingPoints(Points):
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)


class DyingWorker(Toy):
    """Its loader worker is killed; harmless without workers."""

    def dataset(self, recipe):
        return _DyingPoints() if recipe.workers else Points()


class NaNLoss(Toy):
    """Its loss stops being a number."""

    def loss(self, outputs, targets):
        return super().loss(outputs, targets) * float("nan")


class DeviceMemory(Toy):
    """Raises what CUDA raises when its memory is full."""

    def loss(self, outputs, targets):
        if len(targets) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has …")
        return super().loss(outputs, targets)


class Killed(Toy):
    """The measuring process is killed, where the batch is large."""

    def loss(self, outputs, targets):
        if len(targets) > 8:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(outputs, targets)


@torch.library.custom_op("perfkit_tests::unknown", mutates_args=())
def _unknown(x: torch.Tensor) -> torch.Tensor:
    """An operator without a fake implementation: tracing it fails. Its schema is read from its annotations."""
    return x.clone()


class _Unknown(nn.Module):
    def forward(self, x):
        return _unknown(x) if torch.compiler.is_compiling() else x


class Uncompilable(Toy):
    """A model that inductor cannot compile."""

    def model(self):
        return nn.Sequential(_Unknown(), nn.Linear(16, 2))


class Unhurried(Toy):
    """Slow enough to be interrupted in each phase; writes on both of its outputs, as people's code does."""

    def __init__(self):
        super().__init__(delay_s=0.02)
        print('{"event": "error", "what": "a print of the workload"}', flush=True)
        os.write(1, b"raw bytes on standard output\n")


class WrongIn16Bits(Toy):
    """Its loss is another one under autocast: a fault that a parity check must find."""

    def loss(self, outputs, targets):
        return super().loss(outputs, targets) * (2 if outputs.dtype == torch.bfloat16 else 1)


class Blocks(Toy):
    """A model of blocks, as most real ones are."""

    def model(self):
        blocks = [nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU()) for _ in range(4)]
        return nn.Sequential(*blocks, nn.Linear(16, 2))
