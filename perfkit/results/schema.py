"""What is stored of a measurement: raw values, with what was measured, where and how; nothing derived."""

import itertools
from typing import Any, Literal

import msgspec

from perfkit import machine
from perfkit.results import stats
from perfkit.results.parity import Check, Losses, restore
from perfkit.results.rounds import Count, Duration, Pairing, Rate, RoundCount, Seconds, Share

SCHEMA: Literal[2] = 2  # version of the stored format
AGAIN = "baseline_again"  # the stage that measures the baseline again in a second process: the A/A row

Status = Literal["ok", "not_applicable", "failed", "cancelled"]


class Mechanism(Check, frozen=True):
    """Proof that a switch is on (or off), read from the built objects, not from the recipe."""

    name: str = msgspec.field(name="switch")


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """The model behind a simulated run, and how wrong it has been. No part of such a run used a GPU."""

    gpu: str
    host: str  # the virtual host that loads, copies and launches
    model: str  # version of the model; `constants` is the digest of its constants
    constants: str
    band: Share
    """The expected error of samples/s, as a fraction: the error of kernel time, as far as kernels decide."""
    memory_band: Share | None = None  # expected error of the peak memory, as a fraction
    kernel_s: Seconds = 0.0


class Decision(msgspec.Struct, frozen=True):
    """Whether a stage is kept, so that later stages are built on it."""

    kept: bool
    by: Literal["climb", "plan", "user"]
    """Who decided: the climb by its verdict, the plan that asked for it in advance, or the user."""
    why: str = ""


class Busiest(msgspec.Struct, frozen=True):
    """The other program that took the most CPU time while a run was measured."""

    program: str
    share: Share


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a recording comes from."""

    machine: dict[str, Any]
    when: str  # UTC, ISO 8601
    command: str
    commit: str | None = None  # of perfkit

    def describe(self) -> str:
        """When it was recorded, and on which machine."""
        return f"Recorded {self.when[:10]} on {machine.describe(self.machine)}"


class Raw(msgspec.Struct, frozen=True):
    """Every measured value in the order of time, warm-up included."""

    step_s: list[Duration] = []
    data_wait_s: list[Seconds] = []
    warmup_steps: Count = 0
    device_step_s: list[Duration] = []
    """On accelerators: device time between the ends of successive measured steps, within each slice."""
    block_samples_per_s: list[Rate] = []  # one slice in each round
    ceiling_samples_per_s: list[Rate] = []
    """The rates of slices on a batch that is already on the device, after the first incarnation's rounds."""
    gpu_utilization_nvml: list[float] = []
    block_steps: list[Count] = []
    disturbed: list[Share] = []
    """For each round, the share of the cores that others took during its slice."""
    incarnations: list[RoundCount] = []  # rounds in each incarnation; empty if there is only one
    further_warmup_s: list[list[Duration]] = []  # the warm-up steps of each further incarnation

    def __post_init__(self) -> None:
        if len(self.ceiling_samples_per_s) > len(self.block_samples_per_s):
            raise ValueError("it has more slices on a cached batch than rounds")
        if self.incarnations and sum(self.incarnations) != len(self.block_samples_per_s):
            raise ValueError("its incarnations do not add up to the number of its rounds")

    @property
    def sizes(self) -> list[int]:
        return self.incarnations or [len(self.block_samples_per_s)]

    def followed_by(self, more: "Raw") -> "Raw":
        """These values, then those of further rounds, whose processes were started and warmed up again."""
        warmup = more.warmup_steps
        shares = [stats.shares(part.disturbed, len(part.block_samples_per_s)) for part in (self, more)]
        return Raw(
            step_s=[*self.step_s, *more.step_s[warmup:]],
            data_wait_s=[*self.data_wait_s, *more.data_wait_s[warmup:]],
            warmup_steps=self.warmup_steps,
            device_step_s=[*self.device_step_s, *more.device_step_s],
            block_samples_per_s=[*self.block_samples_per_s, *more.block_samples_per_s],
            ceiling_samples_per_s=self.ceiling_samples_per_s,
            gpu_utilization_nvml=[*self.gpu_utilization_nvml, *more.gpu_utilization_nvml],
            block_steps=[*self.block_steps, *more.block_steps],
            disturbed=list(itertools.chain(*shares)),
            incarnations=[*self.sizes, *more.sizes],
            further_warmup_s=[*self.further_warmup_s, more.step_s[:warmup], *more.further_warmup_s],
        )


class StoredRun(msgspec.Struct, frozen=True, kw_only=True):
    """What is stored of a run: one workload under one recipe on one machine."""

    schema: Literal[2] = SCHEMA
    id: str
    session: str  # runs of one session were measured together, on one machine
    created: str  # UTC, ISO 8601
    stage: str
    title: str = ""
    workload: str
    code: str | None = None
    """The digest of the workload's module, or of the script; None if it is not known."""
    options: dict[str, Any] = {}
    preset: str = ""
    device: str
    seed: int = 0
    recipe: dict[str, bool | int | str]
    status: Status = "ok"
    reason: str = ""
    machine: dict[str, Any] = {}
    raw: Raw = Raw()
    samples_per_step: Count = 0
    mechanism: list[Mechanism] = []
    pairings: list[Pairing] = []
    reference_samples_per_s: Rate | None = None
    """The baseline's rate, for every run that was compared with it: its own is this times their ratio."""
    losses: Losses = []
    startup_s: Seconds | None = None
    compile_s: Seconds | None = None
    peak_memory_bytes: Count | None = None
    peak_reserved_bytes: Count | None = None
    batch_bytes_per_sample: Count | None = None  # bytes of a sample in the loader's batch
    simulated: Simulated | None = None
    decision: Decision | None = None  # whether its stage was kept; None if there was nothing to decide
    origin: Provenance | None = None  # of a run from a recording
    script: str | None = None
    """The user's command, if that trained and not `train.py`; the recipe is then what was observed of it."""
    not_applied: dict[str, str] = {}  # switches of its stage that cannot act here, with the reason
    busiest: Busiest | None = None  # of a disturbed run, if it is known
    facts: dict[str, str] = {}  # further facts for people, such as the precision policy
    warnings: list[str] = []

    def __post_init__(self) -> None:
        restore(self.losses)
