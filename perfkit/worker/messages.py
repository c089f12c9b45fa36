"""Messages between a parent process and its measuring process: one typed struct for each.

Messages cross as JSON lines. A command names the type of its answer: `Child.ask(MeasureBlock(...))` gives a
`Block`. Both sides check what they receive. Importing this module does not import torch.
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar, get_args

import msgspec

from perfkit.results.run import Communication, Mechanism
from perfkit.simulate.queue import Planned
from perfkit.worker.reports import (
    Judged,
    KernelReport,
    MemoryReport,
    ParityReport,
    ProfileReport,
    SyncReport,
)

# ---------------------------------------------------------------- answers


class Ready(msgspec.Struct, frozen=True):
    """The answer to a command that has no result."""


class DeviceFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts about a device; all but the first two are known for CUDA devices only."""

    threads: int
    """CPU threads that torch computes with."""
    torch: str
    count: int | None = None
    """Devices of this kind."""
    name: str | None = None
    uuid: str | None = None
    bf16: bool | None = None
    """Whether it computes in bfloat16 without emulation."""
    cuda: str | None = None
    cudnn: str | None = None


class Description(msgspec.Struct, frozen=True):
    """What a workload offers, and what the device is."""

    reference: str
    """`package.module:name`."""
    options: dict[str, Any]
    """All arguments of the workload's constructor."""
    offers: list[str]
    """Optional parts of the workload that some switches need."""
    facts: DeviceFacts
    convolves: bool = True
    """Whether the model has convolutions."""


class Block(msgspec.Struct, frozen=True):
    """Consecutive steps: raw values, and the total time with the device synchronised at both ends."""

    samples: int
    seconds: float
    step_s: list[float] = []
    data_wait_s: list[float] = []
    device_step_s: list[float] = []
    """Between the ends of successive steps by the device's own clock (CUDA only)."""

    @property
    def samples_per_s(self) -> float:
        """Throughput of the whole block."""
        return self.samples / self.seconds

    def __add__(self, other: Block) -> Block:
        """Both blocks as one."""
        return Block(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class CompileCounters(msgspec.Struct, frozen=True):
    """What torch.compile has done in a process."""

    graphs: int
    breaks: int
    cache_hits: int
    cache_misses: int


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """A training that was built, checked and warmed up."""

    recipe: dict[str, Any]
    """As it is in effect: of a script, what can be read from its loader."""
    facts: dict[str, str] = {}
    startup_s: float
    first: Block
    warm: Block
    losses: list[float]
    mechanisms: list[Mechanism]
    batch_bytes_per_sample: int
    samples_per_step: int
    compiled: bool
    compile_counters: CompileCounters
    data_on_device: bool
    """Whether the whole data set is on the device, so that no batch is copied."""
    batch_norm: bool
    weights: str
    """Where the model's weights come from; empty if they are random."""
    malloc: str
    """The settings of the C library's allocator (GLIBC_TUNABLES)."""
    wait_policy: str = ""
    """How compute threads wait for each other (OMP_WAIT_POLICY); empty if they spin for a while."""


class Peak(msgspec.Struct, frozen=True):
    """Peak memory in bytes since the warm-up; recompilations since the first step."""

    allocated: int | None
    reserved: int | None
    recompiles: int


# ---------------------------------------------------------------- commands

A = TypeVar("A")


class Command(msgspec.Struct, Generic[A], frozen=True, tag=True, forbid_unknown_fields=True):
    """What a parent may ask; `A` is the type of the answer."""

    @property
    def answer(self) -> type[A]:
        """The type of the answer."""
        (base,) = type(self).__orig_bases__  # type: ignore[attr-defined]
        (kind,) = get_args(base)
        return kind  # type: ignore[no-any-return]


class Describe(Command[Description], frozen=True, kw_only=True):
    """Load a workload."""

    workload: str
    preset: str
    options: dict[str, Any]
    device: str


class Join(Command[Ready], frozen=True, kw_only=True):
    """Become one of several ranks, which connect when the training is built; the names are torchrun's."""

    rank: int
    local_rank: int
    local_world_size: int
    world_size: int
    master_addr: str
    master_port: int


class Train(Command[Trained], frozen=True, kw_only=True):
    """Build a training, take its first steps, check its switches and warm up."""

    recipe: dict[str, Any]
    seed: int
    loss_steps: int
    warmup_s: float
    started: float
    """When the process was started, in seconds since the epoch."""
    batch_times: str = ""
    """A folder in which the loader's workers record the times of their batches; empty for none."""
    planned: Planned | None = None
    """The step on a simulated GPU, which is replayed in place of training."""


class MeasureBlock(Command[Block], frozen=True):
    """Measure steps of at least this many samples, for at least some seconds."""

    samples: int
    seconds: float = 0.0
    """Judged by the steps of the warm-up."""
    settle: bool = True
    """First use up what was prefetched while this process was idle."""
    queues: int = 1
    """With workers, on a CPU: at least this many times the batches that their queue holds; 0: leave it be."""


class MeasureCeiling(Command[Block], frozen=True):
    """Measure steps on a batch that is already on the device."""

    samples: int


class ReadPeak(Command[Peak], frozen=True):
    """Read the peak memory since the warm-up."""


class MeasureCommunication(Command[Communication], frozen=True):
    """Measure what averaging gradients between the ranks costs."""

    samples: int


class MeasureMemory(Command[MemoryReport], frozen=True):
    """Account for the memory of a step."""


class MeasureKernels(Command[KernelReport], frozen=True):
    """Measure the device's roofs and the work of a step."""


class RecordProfile(Command[ProfileReport], frozen=True, kw_only=True):
    """Record some steps with the profiler into a trace file."""

    path: str
    wait: int
    warmup: int
    active: int
    shapes: bool
    memory: bool
    stacks: bool


class FindSyncs(Command[SyncReport], frozen=True):
    """Find copies and waits between host and device."""

    steps: int


class CheckParity(Command[ParityReport], frozen=True, kw_only=True):
    """Compare a recipe with the plain program."""

    recipe: dict[str, Any]
    exactness: str
    """`bitwise`, or anything else for a tolerance."""
    seed: int
    steps: int


class JudgeAnswer(Command[Judged], frozen=True):
    """Run a learner's answer to a puzzle, and the puzzle's checks on it."""

    checks: str
    source: str
    """The learner's; both are Python."""


AnyCommand = (
    Describe | Join | Train | MeasureBlock | MeasureCeiling | ReadPeak | MeasureCommunication | MeasureMemory
    | MeasureKernels | RecordProfile | FindSyncs | CheckParity | JudgeAnswer
)  # fmt: skip

# ---------------------------------------------------------------- what a child sends


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How much of a command is done."""

    phase: str
    done: int
    total: int
    step_s: float | None = None
    """Mean of the steps since the last message; None where none ended."""
    samples_per_step: int = 0


class Failure(msgspec.Struct, frozen=True, tag=True):
    """Why a process failed, in words, and what to do."""

    kind: str
    what: str
    remedy: str


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The answer to a command, still to be checked against the type that the command names."""

    value: Any


AnyEvent = Progress | Failure | Answer


def encode(message: msgspec.Struct) -> str:
    """A message as a line. Not by msgspec's own encoder: that writes NaN as null."""
    return json.dumps(msgspec.to_builtins(message)) + "\n"


def decode_command(line: str | bytes) -> AnyCommand:
    """A command from its line.

    Raises:
        ValueError: the line is no command.
    """
    return msgspec.convert(json.loads(line), AnyCommand)  # type: ignore[no-any-return]


def decode_event(line: str | bytes) -> AnyEvent:
    """An event from its line.

    Raises:
        ValueError: the line is no event.
    """
    return msgspec.convert(json.loads(line), AnyEvent)  # type: ignore[no-any-return]
