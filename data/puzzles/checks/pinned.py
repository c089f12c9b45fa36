from unittest import mock

import torch
from torch.utils.data import DataLoader

from bench import Numbers, SimulatedGpu, require
from judged import make_loader, original, proof, to_device

with mock.patch.object(torch.cuda, "is_available", return_value=True):
    loader = make_loader(Numbers(64), 8)
require(isinstance(loader, DataLoader), "make_loader has to return a DataLoader")
require(loader.num_workers, "Without workers the training process pins each batch itself: keep the worker")
require(loader.pin_memory, "The batches are in ordinary memory, from which a copy is slow: pin them")
host = [(torch.empty(1000 + number, 2500), torch.empty(1000 + number)) for number in range(8)]


def seconds(copying):
    with SimulatedGpu(kernel_s=1e-3, link_gbs=2.5) as gpu:
        for images, labels in host:
            there = copying(images, labels, gpu.device)
            require(
                len(there) == 2 and all(tensor.is_meta for tensor in there),
                "to_device has to return images and labels on the device",
            )
            require(len(there[0]) == len(images), "to_device returns other images than it was given")
            there[0].relu()
            gpu.clock.now += 4e-3
    return gpu


gpu, plain = seconds(to_device), seconds(original.to_device)
slow = [tensor for tensor, non_blocking, _ in gpu.copies if not non_blocking]
require(
    len(gpu.copies) == len(plain.copies),
    f"{len(gpu.copies)} tensors were copied and should be {len(plain.copies)}: each once",
)
require(not slow, f"The host waits for {len(slow)} of {len(gpu.copies)} copies: let it go on after each")
proof(
    f"the host waits for none of {len(gpu.copies)} copies: {plain.seconds / gpu.seconds:.2f} times as fast on the clock of a simulated GPU, where fetching a batch takes as long as copying it"
)
