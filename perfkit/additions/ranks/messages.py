"""What a rank says of itself, as typed data."""

from types import SimpleNamespace
from typing import Any

import msgspec

from perfkit import registry
from perfkit.results.schema import Mechanism

LIMIT: Any = SimpleNamespace(**registry.toml(__package__, "limits"))
PARTS = ("waiting", "forward", "backward", "optimizer", "own code", "exchange")
"""What a step of a rank consists of: `waiting` for data, `exchange` where ranks wait and send."""
BUFFERS = "broadcast of buffers"  # the exchange that `DistributedDataParallel` makes before a forward pass


class StepOfRank(msgspec.Struct, frozen=True, array_like=True):
    """A step: its number, its seconds, and those of its parts as in `PARTS`.

    `exchange` is the time in collectives, and what is left of the exchange of gradients when the rank has
    computed them all; `is_read`: this last part was measured, not taken from other steps. `hidden`: seconds
    of that exchange while the rank still computed. `syncs`: gradient exchanges. `elements` of the inputs.
    """

    number: int
    seconds: float
    parts: list[float]
    hidden: float
    is_read: bool
    syncs: int
    samples: int
    elements: int
    marks: list[str]


class Stack(msgspec.Struct, frozen=True, array_like=True):
    """Seconds in which the rank was at these lines (`/home/me/train.py:41`), from the outermost inwards."""

    part: str
    lines: list[str]
    seconds: float


class Exchange(msgspec.Struct, array_like=True):
    """The calls of one collective at one line, in the steps that are told, and the bytes given to them."""

    name: str
    where: str
    count: int = 0
    seconds: float = 0.0
    bytes: int = 0


class LoaderOfRank(msgspec.Struct, frozen=True, kw_only=True):
    """The loader that trains: `rows` of its data set, `drawn` of them in an epoch on this rank.

    `is_divided`: the sampler knows of ranks. `epochs`: the first indices of each epoch.
    """

    where: str
    workers: int
    rows: int | None
    drawn: int | None
    is_divided: bool
    is_shuffled: bool
    epochs: list[list[int]]


class Ddp(msgspec.Struct, frozen=True, kw_only=True):
    """A `DistributedDataParallel` model, by torch's own account of it.

    `needs_no_search`: `find_unused_parameters` is on, and none was unused. `cap`: bytes of a bucket, at most.
    `is_compiled`: the model in it was compiled before. `sync_norms`: layers of `SyncBatchNorm`.
    """

    where: str
    buckets: list[int]
    bytes: int
    needs_no_search: bool
    buffers: int
    backend: str
    cap: int = 0
    is_compiled: bool = False
    sync_norms: int = 0


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A rank has joined its group, of which its node has `local` ones; `restart`: of the agent."""

    rank: int
    world: int
    local: int
    pid: int
    restart: int


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How many steps the rank has taken, and which `part` of its run it is in."""

    steps: int
    part: str


class State(msgspec.Struct, kw_only=True, tag=True):
    """All that a rank has seen; it goes on, and is sent when it is asked for, and when the rank ends.

    `at`: the user's lines that the main thread is in, the innermost first; `inside`: the collective, in this
    `part` of a step. `rows`: checksums of input rows by step; `weights`: those of all parameters. `count` of
    steps; `last_step_s`: seconds since the last one. `backward`, `inputs`: lines of these calls. `gpu`: its
    UUID, and the machine. `is_of_agent`: torchrun has started it. `mechanisms`: proofs of what is set.
    """

    rank: int
    ended: bool = False
    failure: str = ""
    steps: list[StepOfRank] = []
    stacks: list[Stack] = []
    exchanges: list[Exchange] = []
    loader: LoaderOfRank | None = None
    ddps: list[Ddp] = []
    rows: dict[int, list[int]] = {}
    weights: dict[int, int] = {}
    threads: int = 0
    is_of_agent: bool = False
    device: str = "cpu"
    gpu: str = ""
    backward: list[str] = []
    inputs: list[str] = []
    at: list[str] = []
    inside: str = ""
    part: str = ""
    count: int = 0
    last_step_s: float = 0.0
    notes: list[str] = []
    mechanisms: list[Mechanism] = []

    @property
    def told(self) -> int:
        """The number of steps that the stacks and exchanges cover; 1 if there is none."""
        return max(1, self.count - int(LIMIT.skipped))


Message = Beat | State
