"""Trains a small network on several ranks with DistributedDataParallel.

    torchrun --nproc-per-node 2 several_ranks.py --steps 500
    perfkit scale several_ranks.py --ranks 1,2
    perfkit watch -- torchrun --nproc-per-node 2 several_ranks.py --late-ms 20

The data are random numbers, so nothing has to be downloaded.
"""

import argparse
import contextlib
import os
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

ROWS, WIDTH = 16_384, 768


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=128, help="samples of a batch on each rank")
    parser.add_argument("--global-batch", type=int, help="samples of a batch on all ranks together")
    parser.add_argument("--accumulate", type=int, default=1, help="batches of a step")
    parser.add_argument("--late-ms", type=float, default=0.0, help="rank 1 takes so much longer for a batch")
    parser.add_argument("--steps", type=int, default=100_000)
    return parser.parse_args()


def joined():
    """Joins the group that torchrun describes: the device of this rank."""
    on_gpus = torch.cuda.device_count() > 1
    device = torch.device("cpu")
    if on_gpus:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)  # before NCCL starts
    distributed.init_process_group("nccl" if on_gpus else "gloo")
    torch.manual_seed(distributed.get_rank())
    torch.set_num_threads(1)  # so that one rank has as many as each of several
    return device


def batches(loader):
    """The batches of one epoch after the other, each in its own order."""
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main():
    chosen, device = arguments(), joined()
    size = chosen.batch_size
    if chosen.global_batch:
        size = chosen.global_batch // distributed.get_world_size()
    made = torch.Generator().manual_seed(0)  # the same rows on all ranks
    data = TensorDataset(torch.randn(ROWS, 64, generator=made), torch.randint(10, (ROWS,), generator=made))
    loader = DataLoader(data, size, sampler=DistributedSampler(data, drop_last=True), drop_last=True)
    layers = [nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)]
    model = DistributedDataParallel(nn.Sequential(*layers).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    source = batches(loader)
    for _ in range(chosen.steps):
        for part in range(chosen.accumulate):
            if distributed.get_rank() == 1:
                time.sleep(1e-3 * chosen.late_ms)
            inputs, targets = (each.to(device) for each in next(source))
            is_last = part == chosen.accumulate - 1
            with contextlib.nullcontext() if is_last else model.no_sync():
                loss = nn.functional.cross_entropy(model(inputs), targets) / chosen.accumulate
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
