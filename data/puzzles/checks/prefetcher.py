import itertools

import torch

from bench import SimulatedGpu, require
from judged import prefetch, proof

host = [torch.empty(1000 + number, 2500) for number in range(12)]
taken = []


def batches():
    for batch in host:
        taken.append(len(batch))
        yield batch


def plain(batches, device):
    for batch in batches:
        yield batch.to(device, non_blocking=True)


def seconds(copying):
    with SimulatedGpu(kernel_s=1e-3, link_gbs=2.5) as gpu:
        seen, protected, ahead = [], [], 0
        for batch in copying(batches(), gpu.device):
            require(
                getattr(batch, "device", torch.device("cpu")).type == "meta",
                "The generator has to give tensors on the device",
            )
            seen.append(len(batch))
            protected.append(gpu.is_protected(batch))
            ahead = max(ahead, len(taken) - len(seen))
            for _ in range(4):
                batch = batch.relu()
    return gpu, seen, protected, ahead


base, *_ = seconds(plain)
with SimulatedGpu() as gpu:
    again = [len(batch) for batch in itertools.islice(prefetch(list(host), gpu.device), len(host) + 1)]
require(
    again == [len(batch) for batch in host],
    "From a list, as from a DataLoader, it gives the wrong batches: it starts the iteration again with each copy. Make one iterator, `iter(batches)`",
)
taken.clear()
gpu, seen, protected, ahead = seconds(prefetch)
require(
    seen == [len(batch) for batch in host],
    f"{len(seen)} batches came and should be {len(host)}, in their order: is the last one lost?",
)
require(
    ahead <= 2, f"{ahead} batches were on the device ahead of the model: one is enough, and memory is short"
)
streams = {stream for _, _, stream in gpu.copies}
require(
    0 not in streams,
    "Copies run on the stream of the kernels, so they wait for each other: use a second stream",
)
require(
    gpu.unsafe == 0,
    "The model may read a batch before its copy has ended: the current stream has to wait for the stream of the copy",
)
require(
    all(protected), "Memory of a batch may be used again while the model reads it: call `record_stream` on it"
)
gain = base.seconds / gpu.seconds
require(
    gain > 1.6,
    f"On the simulated clock it is {gain:.2f} times as fast as copying on one stream: copy and kernels do not overlap. Does the host wait?",
)
proof(
    f"{gain:.2f} times as fast as on one stream, on the clock of a simulated GPU where copy and kernels take equally long"
)
