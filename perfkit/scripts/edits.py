"""Switches that cannot be set from outside a script, each with the edit to make instead."""

from __future__ import annotations

EDITS: dict[str, str] = {
    "infinite_sampler": "give the loader a sampler without end, and count the epochs yourself",
    "batched_fetch": "write `__getitems__` in the data set, and a collate_fn that takes its result",
    "device_prefetch": "copy the next batch on a second CUDA stream in the loop",
    "uint8_copy": "return uint8 from the data set; convert and normalise after `.to(device)`",
    "device_resize": "return small images from the data set; enlarge them after `.to(device)`",
    "device_dataset": "put the whole data set on the device once, and index it there",
    "accumulation": "call backward on several batches, each loss divided by their number, before the step",
    "activation_checkpointing": "call the blocks through torch.utils.checkpoint.checkpoint",
    "embedding_device": "keep the embedding in host memory, and copy its output",
    "log_every": "read the loss with .item() only every N steps",
    "nvtx_ranges": "open torch.cuda.nvtx.range around the parts of the step",
    "ranks": "start the script with torchrun, with DistributedDataParallel in it",
    "no_sync": "enter model.no_sync() for all but the last batch of a step",
}
