"""The messages of a rank to its watcher, as typed data."""

from types import SimpleNamespace
from typing import Any

import msgspec

from perfkit import lookup
from perfkit.additions.scripts.messages import Rows, ZeroRate
from perfkit.results.schema import Mechanism

LIMIT: Any = SimpleNamespace(**lookup.toml(__package__, "limits"))
PARTS = ("waiting", "forward", "backward", "optimizer", "own code", "exchange")  # of a step
BUFFERS = "broadcast of buffers"  # the exchange that `DistributedDataParallel` makes before a forward pass


class StepOfRank(msgspec.Struct, frozen=True, array_like=True):
    """A step; `exchange` includes sending gradients after the rank has computed all of them."""

    number: int
    seconds: float
    parts: list[float]  # seconds, as in `PARTS`
    hidden: float  # seconds of exchanging gradients while the rank computed
    is_read: bool  # whether its exchange was measured, not taken from another step
    syncs: int  # how many times gradients were exchanged
    samples: int
    elements: int  # of the inputs
    marks: list[str]


class Stack(msgspec.Struct, frozen=True, array_like=True):
    """Seconds in which the rank was at these lines (`/home/me/train.py:41`), from the outermost inwards."""

    part: str
    lines: list[str]
    seconds: float
    calls: str = ""  # the library function that the innermost line called


class Exchange(msgspec.Struct, array_like=True):
    """The calls of one collective at one line, in the reported steps, and the bytes given to them."""

    name: str
    where: str
    count: int = 0
    seconds: float = 0.0
    bytes: int = 0


class LoaderOfRank(msgspec.Struct, frozen=True, kw_only=True):
    """The loader that trains."""

    where: str
    workers: int
    rows: int | None  # of its data set
    drawn: int | None  # rows of an epoch on this rank
    is_divided: bool  # whether the sampler knows of ranks
    is_shuffled: bool
    epochs: list[list[int]]  # the first indices of each


class Ddp(msgspec.Struct, frozen=True, kw_only=True):
    """A `DistributedDataParallel` model, as torch's logging data describe it."""

    where: str
    sent: int = 1  # passes in which its gradients were seen to be sent
    buckets: list[int]  # bytes
    bytes: int
    needs_no_search: bool  # whether `find_unused_parameters` is on, and none was unused
    buffers: dict[str, int]  # their bytes, by name
    backend: str
    cap: int = 0  # bytes of a bucket, at most
    is_compiled: bool = False  # whether the wrapped model is compiled
    sync_norms: int = 0  # layers of `SyncBatchNorm`
    unknown: list[str] = []  # parameters that train, but are not exchanged


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A rank has joined its group."""

    rank: int
    world: int
    local: int  # ranks of the group on its node
    pid: int
    restart: int  # how many times the agent has started all ranks again


class Beat(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How many steps the rank has taken, and which `part` of its run it is in."""

    steps: int
    part: str


class State(msgspec.Struct, kw_only=True, tag=True):
    """All notes of a rank until now, sent when the watcher asks for them and when the rank ends."""

    rank: int
    ended: bool = False
    failure: str = ""
    steps: list[StepOfRank] = []
    stacks: list[Stack] = []
    exchanges: list[Exchange] = []
    loader: LoaderOfRank | None = None
    ddps: list[Ddp] = []
    rows: dict[int, list[int]] = {}  # checksums of input rows, by step
    weights: dict[int, int] = {}  # checksums of all parameters, as the first pass after a step has them
    embeddings: Rows | None = None  # whose gradients were sent in one of these steps
    zero_rate: ZeroRate | None = None
    optimizer: list[str] = []  # the line that makes it, and its caller's; empty if there are several
    threads: int = 0
    set_threads: list[str] = []  # lines that set them
    is_of_agent: bool = False  # whether torchrun has started the rank
    device: str = "cpu"
    gpu: str = ""  # the machine, and its UUID
    forward: list[str] = []  # lines of a model's first call, the innermost first, up to the training loop
    backward: list[str] = []  # lines of the calls
    inputs: list[str] = []  # lines of the calls
    at: list[str] = []  # the user's lines that the main thread is in, the innermost first
    inside: str = ""  # the collective that the main thread is in
    part: str = ""  # of a step, that the rank is in
    cpu_s: float = 0.0  # CPU time of the process in the reported steps
    count: int = 0  # of steps
    last_step_s: float = 0.0  # seconds since the last step
    modes: list[str] = []  # that make passes slower, such as anomaly detection
    notes: list[str] = []
    mechanisms: list[Mechanism] = []  # proofs of the switches

    @property
    def covered_steps(self) -> int:
        """The number of steps that the stacks and exchanges cover; 1 if there is none."""
        return max(1, self.count - int(LIMIT.skipped))


Message = Beat | State
