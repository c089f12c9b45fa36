"""Typed messages between a measuring process and its parent; imports no torch.

A question is what `Procedures.answer` takes. The process sends back each phase that it begins, as a string,
and finally a `process.Answer` or a `RunFailed`.
"""

from typing import Any

import msgspec

from perfkit.results import Mechanism


class DeviceFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts about a CUDA device; all are None for other devices. `bf16` means without emulation."""

    name: str | None = None
    uuid: str | None = None
    bf16: bool | None = None


class Description(msgspec.Struct, frozen=True):
    """A workload, and the facts about the device.

    `options` are all arguments of its constructor, `offers` the optional parts that some switches need.
    """

    options: dict[str, Any]
    offers: list[str]
    facts: DeviceFacts
    convolves: bool = True


class TimedSteps(msgspec.Struct, frozen=True):
    """Consecutive steps: their raw values, and the total time, with the device synchronised at both ends."""

    samples: int
    seconds: float
    step_s: list[float] = []
    data_wait_s: list[float] = []
    device_step_s: list[float] = []
    """Times between the ends of successive steps by the device's own clock; none on a CPU."""

    @property
    def samples_per_s(self) -> float:
        return self.samples / self.seconds

    def __add__(self, other: "TimedSteps") -> "TimedSteps":
        return TimedSteps(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class CompileCounters(msgspec.Struct, frozen=True):
    """What torch.compile has done in a process."""

    graphs: int = 0
    breaks: int = 0
    cache_hits: int = 0


class TrainingReport(msgspec.Struct, frozen=True, kw_only=True):
    """A training that was built, checked and warmed up."""

    recipe: dict[str, Any]  # the recipe in effect; for a script, what its objects show
    facts: dict[str, str] = {}
    startup_s: float
    warmup: TimedSteps  # every step before the first slice
    losses: list[float]
    mechanisms: list[Mechanism]
    batch_bytes_per_sample: int | None = None
    samples_per_step: int
    compile_counters: CompileCounters


class Peak(msgspec.Struct, frozen=True):
    """Peak memory in bytes since the warm-up, and recompilations since the first step."""

    allocated: int | None
    reserved: int | None
    recompiles: int
