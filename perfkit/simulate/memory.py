"""Device memory of a step, moment by moment, as torch's allocator rounds it; and what comes on top of it."""

from perfkit.simulate.step import Allocate, Step

CONTEXT = 450 << 20
"""Bytes that CUDA and the libraries' code take before the first tensor; 300 to 500 MiB are usual."""
WORKSPACE = 256 << 20
"""Bytes for the scratch memory of cuDNN and cuBLAS; assumed."""
BAND = 0.05
"""Error of the peak to expect, as a fraction: blocks are counted, not modelled …"""
COMPILED_BAND = 0.25
"""… but what a compiled step recomputes, and so does not keep, is not known: it may need less."""


def rounded(nbytes: int) -> int:
    """The size of the block that the allocator gives for a request."""
    return -(-max(nbytes, 1) // 512) * 512


def peak(step: Step) -> int:
    """The most bytes that tensors hold at a moment of the step."""
    now = most = sum(rounded(block.nbytes) for block in step.resident)
    for event in step.events:
        if isinstance(event, Allocate):
            size = rounded(abs(event.nbytes))
            now += size if event.nbytes > 0 else -size
            most = max(most, now)
    return most


def needed(step: Step) -> int:
    """The bytes that a GPU must have for the step, context and workspaces included."""
    return peak(step) + CONTEXT + WORKSPACE


def band(step: Step) -> float:
    """The error of the peak to expect, as a fraction."""
    return COMPILED_BAND if step.compiled else BAND
