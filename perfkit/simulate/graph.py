"""A compiled graph as its kernels and buffers, and how they become events of a step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perfkit.simulate.step import Tensor


@dataclass
class Buffer:
    """Memory that a graph allocates."""

    name: str
    nbytes: int


@dataclass
class Launch:
    """One kernel or operator of a compiled graph; without a name, it launches nothing."""

    name: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    attributes: dict[str, Any]
    module: str
    site: str
    makes: list[Buffer]
    reads: list[str]
    """Names of buffers and of inputs of the graph."""


@dataclass
class Plan:
    """A compiled graph."""

    launches: list[Launch]
    inputs: list[str]
    """Names of the graph's inputs, in their order."""
    outputs: list[str]
    """Names of the buffers that it returns, in their order."""
    is_backward: bool
    last_use: dict[str, int] = field(default_factory=dict)
    """By buffer or input: the launch after which it is no longer needed."""

    def __post_init__(self) -> None:
        for number, launch in enumerate(self.launches):
            for name in [*launch.reads, *(buffer.name for buffer in launch.makes)]:
                self.last_use[name] = number
