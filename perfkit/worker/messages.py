"""Messages between a process that measures and the one that asks it, as typed data.

A question is the name of a method of `worker.session.Session` and its arguments; the answer is a struct that
the asking side checks. Importing this module does not import torch.
"""

from typing import Any

import msgspec

from perfkit.results.run import Mechanism


class Question(msgspec.Struct, frozen=True):
    """What a process is asked."""

    name: str
    arguments: dict[str, Any] = {}


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How much of a question is done."""

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
    """The answer to a question, still to be checked against the type that is expected."""

    value: Any


AnyEvent = Progress | Failure | Answer

encode = msgspec.msgpack.encode
"""A message as bytes. Not JSON: that has no NaN."""


def decode_question(message: bytes) -> Question:
    """A question from its bytes; raises `msgspec.DecodeError` if it is none."""
    return msgspec.msgpack.decode(message, type=Question)


def decode_event(message: bytes) -> AnyEvent:
    """An event from its bytes; raises `msgspec.DecodeError` if it is none."""
    return msgspec.msgpack.decode(message, type=AnyEvent)  # type: ignore[no-any-return]


# ---------------------------------------------------------------- answers


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
        """Throughput of the block."""
        return self.samples / self.seconds

    def __add__(self, other: "Block") -> "Block":
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
    """The recipe in effect: for a script, what can be read from its objects."""
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
    batch_norm: bool
    weights: str = ""
    """Where the model's weights come from; empty if they are random."""


class Peak(msgspec.Struct, frozen=True):
    """Peak memory in bytes since the warm-up; recompilations since the first step."""

    allocated: int | None
    reserved: int | None
    recompiles: int
