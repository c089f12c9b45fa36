"""Names that stored runs, settings and scripts of older versions use, and those that replaced them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SWITCHES = {
    "resident": "device_dataset",
    "bucket_mb": "bucket_cap_mb",
    "bucket_view": "gradient_as_bucket_view",
    "checkpointing": "activation_checkpointing",
    "compression": "gradient_compression",
    "ranges": "nvtx_ranges",
    "rdma": "infiniband",
    "placement": "embedding_device",
    "set_to_none": "zero_grad_set_to_none",
    "tf32": "fp32_precision",
}
"""Switches that were renamed to PyTorch's own words, in schema 2 (`tf32`: 3)."""

ADDED = {"infinite_sampler": False}
"""Switches that older runs do not have, with what they did."""

STAGES = {name: SWITCHES[name] for name in (
    "resident", "bucket_mb", "bucket_view", "checkpointing", "compression", "ranges",
)}  # fmt: skip
"""Optimizations of schema 1 that were called what their switch was."""

_VALUES = {
    ("embedding_device", "cpu_embedding"): "cpu",
    **{("fp32_precision", word): "tf32" for word in ("true", "on", "yes", "1")},
    # Without `tf32`, the program used to switch it off for convolutions too.
    **{("fp32_precision", word): "ieee" for word in ("false", "off", "no", "0")},
}


def switch(name: str) -> str:
    """Today's name of a switch."""
    return SWITCHES.get(name, name)


def stage(name: str) -> str:
    """Today's name of an optimization."""
    return STAGES.get(name, name)


def recipe(data: Mapping[str, Any]) -> dict[str, Any]:
    """A recipe's plain data with today's names and values."""
    named = {switch(name): value for name, value in data.items()}
    return {name: _VALUES.get((name, str(value).lower()), value) for name, value in named.items()}
