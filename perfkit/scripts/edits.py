"""Switches that cannot be set from outside a script, each with the edit to make instead; and the others."""

from perfkit.recipe import switches

EDITS: dict[str, str] = {
    "batched_fetch": "write `__getitems__` in the data set, and a collate_fn that takes its result",
    "device_prefetch": "copy the next batch on a second CUDA stream in the loop",
    "uint8_copy": "return uint8 from the data set; convert and normalise after `.to(device)`",
    "device_resize": "return small images from the data set; enlarge them after `.to(device)`",
    "accumulation": "call backward on several batches, each loss divided by their number, before the step",
    "activation_checkpointing": "call the blocks through torch.utils.checkpoint.checkpoint",
    "ranks": "start the script with torchrun, with DistributedDataParallel in it",
    "no_sync": "enter model.no_sync() for all but the last batch of a step",
}

SETTABLE = tuple(name for name in switches() if name not in EDITS)
"""The switches that can be set from outside."""
