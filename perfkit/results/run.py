"""Runs: what a measurement leaves behind. Raw values are kept, everything else is derived from them here."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from perfkit import machine
from perfkit.errors import StoreError
from perfkit.results import stats
from perfkit.results.parity import Check
from perfkit.results.stats import Estimate, Ratio, Values
from perfkit.results.upgrade import SCHEMA, upgraded

T = TypeVar("T")

AGAIN = "baseline_again"
"""The stage that measures the baseline once more in another process: the A/A row."""
DISTURBED = 0.05
"""A block during which others took more than this share of the cores is disturbed (metrics §1)."""

Status = Literal["ok", "not_applicable", "failed", "cancelled"]
Role = Literal["previous", "baseline"]
"""What a run is compared with: the stage before it, or the first one."""
Flags = np.ndarray[Any, np.dtype[np.bool_]]

# What a file from outside may hold: of other values nothing could be computed.
Rate = Annotated[float, Meta(gt=1e-6, lt=1e12)]
"""samples/s."""
Seconds = Annotated[float, Meta(ge=0, lt=1e9)]
Duration = Annotated[float, Meta(gt=0, lt=1e9)]
"""Seconds that something divides by."""
Share = Annotated[float, Meta(ge=0, lt=1e3)]
Count = Annotated[int, Meta(ge=0)]


class Mechanism(Check, frozen=True):
    """Proof that a switch is on (or off): read from the built objects, not from the recipe."""

    name: str = msgspec.field(name="switch")


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """The model behind a simulated run, and how far off it has been; nothing of the run used a GPU."""

    gpu: str
    host: str
    """What loads, copies and launches: a virtual host."""
    model: str
    """Version of the model; `constants` is the digest of its constants."""
    constants: str
    band: Share
    """Error of samples/s to expect, as a fraction: that of kernel time, as far as kernels decide it."""
    memory_band: Share | None = None
    """Error of the peak memory to expect, as a fraction."""
    kernel_s: Seconds = 0.0


class Decision(msgspec.Struct, frozen=True):
    """Whether a stage is kept, so that later stages are built on it."""

    kept: bool
    by: Literal["climb", "plan", "user"]
    """Who decided: the climb by its verdict, the plan that asked for it in advance, or the user."""
    why: str = ""

    def describe(self) -> str:
        """`kept`, or `dropped: slower`."""
        word = "kept" if self.kept else "dropped"
        return f"{word}: {self.why}" if self.why else word


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a recording comes from."""

    machine: dict[str, Any]
    when: str
    """UTC, ISO 8601."""
    command: str
    commit: str | None = None
    """Of perfkit."""

    def describe(self) -> str:
        """When it was recorded, and on which machine."""
        return f"Recorded {self.when[:10]} on {machine.describe(self.machine)}"

    def details(self) -> str:
        """The same, and how it was recorded."""
        version = f" of perfkit {self.commit[:10]}" if self.commit else ""
        return f"{self.describe()}, by {self.command}{version}."


class Raw(msgspec.Struct, frozen=True):
    """Every measured value in the order of time, warm-up included."""

    step_s: list[Duration] = []
    data_wait_s: list[Seconds] = []
    warmup_steps: Count = 0
    device_step_s: list[Duration] = []
    """CUDA only: device time between the ends of successive measured steps, within each block."""
    block_samples_per_s: list[Rate] = []
    """One block in each round."""
    ceiling_samples_per_s: list[Rate] = []
    """The step on one batch that is already on the device, in the first of the same rounds."""
    gpu_utilization_nvml: list[float] = []
    block_steps: list[Count] = []
    disturbed: list[Share] = []
    """For each round, the largest share of the cores that others took during one of its blocks."""

    def __post_init__(self) -> None:
        if len(self.ceiling_samples_per_s) > len(self.block_samples_per_s):
            raise ValueError("it holds more ceilings than blocks")


class Communication(msgspec.Struct, frozen=True, kw_only=True):
    """What averaging gradients between ranks costs an optimizer step; times in seconds."""

    bytes_per_step: Annotated[int, Meta(gt=0)]
    step_s: Duration
    compute_s: Duration
    """A step in which nothing is averaged."""
    alone_s: Duration
    """A collective of as many bytes, with nothing else running."""
    rank_compute_s: Annotated[list[Duration], Meta(min_length=1)]
    """`compute_s` of each rank: the others wait for the slowest one."""
    start_s: Seconds
    """Time of a collective that moves almost no bytes."""


def counting(shares: Sequence[float], count: int) -> tuple[Flags, float | None]:
    """Which of `count` rounds count: the undisturbed ones; or all, if these are too few, and how disturbed.

    Others took `shares` of the cores, one in each round; empty where it was not measured. How disturbed all
    are is the mean share of the disturbed ones.
    """
    values = np.array(shares if len(shares) == count else [0.0] * count)
    clean: Flags = values <= DISTURBED
    # Half of fewer rounds will do: they give no verdict anyway.
    if clean.sum() >= (stats.MIN_ROUNDS if count >= stats.MIN_ROUNDS else count / 2):
        return clean, None
    return np.ones(count, bool), float(values[~clean].mean())


class Rounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """samples/s of two runs, block by block, in one pair of processes."""

    own_samples_per_s: Annotated[list[Rate], Meta(min_length=1)]
    other_samples_per_s: Annotated[list[Rate], Meta(min_length=1)]
    disturbed: list[Share] = []
    """Share of the cores that others took in each round; empty where it was not measured."""

    @property
    def rates(self) -> tuple[Values, Values]:
        """Both as arrays, this run's first, in the rounds that count."""
        own, other = np.array(self.own_samples_per_s), np.array(self.other_samples_per_s)
        counts, _ = counting(self.disturbed, own.size)
        return (own[counts], other[counts]) if own.size == other.size else (own, other)

    @property
    def is_disturbed(self) -> bool:
        """Whether too few rounds were undisturbed, so that all of them count."""
        return counting(self.disturbed, len(self.own_samples_per_s))[1] is not None


class Pairing(Rounds, frozen=True, kw_only=True, omit_defaults=True):
    """The blocks of two runs, round by round: what a comparison is computed from."""

    against: str
    role: Role
    interleaved: bool
    """Whether both were measured in the same rounds; if not, the rates may be relative to the baseline's."""
    noise: Share | None = None
    """The machine's A/A noise then: smaller effects are not called effects; None if unknown."""
    band: Share | None = None
    """Of simulated runs: the model's error of the ratio to expect, as a fraction; None for measured ones."""
    further_pairs: list[Rounds] = []
    """The same two recipes, measured again, each time in a pair of fresh processes."""

    def __post_init__(self) -> None:
        if self.interleaved and len(self.own_samples_per_s) != len(self.other_samples_per_s):
            raise ValueError("its rates are interleaved, but not equally many")

    @property
    def pairs(self) -> list[Rounds]:
        """The rounds of every pair of processes."""
        return [self, *self.further_pairs]

    @property
    def ratio(self) -> Ratio:
        """How many times faster this run is than the other, with its interval and verdict."""
        pairs = [pair for pair in self.pairs if not pair.is_disturbed]
        if len(pairs) < stats.MIN_ROUNDS:
            pairs = self.pairs
        rates = [pair.rates for pair in pairs]
        if self.further_pairs:
            ratio = stats.ratio_over_pairs(rates, noise=self.noise)
        else:
            ratio = stats.ratio(*rates[0], paired=self.interleaved, noise=self.noise)
        if any(pair.is_disturbed for pair in pairs):
            return msgspec.structs.replace(ratio, verdict="disturbed")
        return ratio if self.band is None else stats.predicted(ratio, self.band)


class Run(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One workload under one recipe on one machine. Immutable; a failed run is a run too.

    The derived values (`samples_per_s` and those that follow) are None where nothing was measured.
    """

    schema: Literal[2] = SCHEMA
    id: str
    session: str
    """Runs of one session were measured together, on one machine."""
    created: str
    """UTC, ISO 8601."""
    stage: str
    title: str = ""
    workload: str
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
    """The baseline's rate, for a run that was not measured in the same rounds as the others."""
    losses: list[float] = []
    startup_s: Seconds | None = None
    compile_s: Seconds | None = None
    peak_memory_bytes: Count | None = None
    peak_reserved_bytes: Count | None = None
    batch_bytes_per_sample: Count | None = None
    """Size of a sample in the batch that the loader hands over."""
    communication: Communication | None = None
    simulated: Simulated | None = None
    decision: Decision | None = None
    """Whether the climb kept its stage; None where nothing was to be decided."""
    origin: Provenance | None = None
    """Of a run that is played from a recording."""
    script: str | None = None
    """The command of a user's script that trained; the recipe is then only what could be observed of it."""
    facts: dict[str, str] = {}
    """Further facts: precision policy, switches that were not applied and why."""
    warnings: list[str] = []

    @property
    def h2d_bytes_per_sample(self) -> int | None:
        """What is copied to an accelerator; None on a CPU, where nothing is copied."""
        return None if self.device.startswith("cpu") else self.batch_bytes_per_sample

    @property
    def is_again(self) -> bool:
        """Whether this is the A/A row."""
        return self.stage == AGAIN

    @cached_property
    def samples_per_s(self) -> Estimate | None:
        """Throughput: geometric mean over the undisturbed blocks, with its 95% interval.

        The ratio of two runs is the ratio of these values. A run that was not measured in the same rounds as
        the others has the baseline's rate times its ratio to the baseline in their common rounds.
        """
        rates = self.block_rates
        if self.status != "ok" or not rates.size:
            return None
        estimate = stats.geometric_mean(rates)
        if self.simulated:
            estimate = stats.widened(estimate, self.simulated.band)
        baseline = self.pairing("baseline")
        if self.reference_samples_per_s and baseline and baseline.interleaved:
            drift = self.reference_samples_per_s / stats.geometric_mean(baseline.rates[1]).value
            estimate = Estimate(*(value * drift for value in msgspec.structs.astuple(estimate)))
        return estimate

    @cached_property
    def step_s(self) -> Estimate | None:
        """Time of a step, data wait included: median over the steps that count."""
        steps = self._measured(self.raw.step_s, self.raw.device_step_s)
        step = stats.median(steps) if self.status == "ok" else None
        return stats.widened(step, self.simulated.band) if step and self.simulated else step

    @property
    def data_wait_s(self) -> Estimate | None:
        """Time a step waits in `next(loader)`: median over the steps that count."""
        return stats.median(self._measured(self.raw.data_wait_s))

    @property
    def data_wait_share(self) -> float | None:
        """Waiting for data / whole step, over all steps that count (0 to 1)."""
        if self.step_s is None:
            return None
        steps = self._measured(self.raw.step_s, self.raw.device_step_s)
        return float(self._measured(self.raw.data_wait_s).sum() / steps.sum())

    @property
    def pipeline_efficiency(self) -> float | None:
        """Throughput / ceiling: geometric mean over the rounds in which both were measured."""
        rates = self._efficiencies
        measured = self.samples_per_s and rates.size and not self.ceiling_below_rate
        return stats.geometric_mean(rates).value if measured else None

    @property
    def ceiling_samples_per_s(self) -> float | None:
        """What the model could do if data were free, at the rate of `samples_per_s`."""
        rate, efficiency = self.samples_per_s, self.pipeline_efficiency
        return rate.value / efficiency if rate and efficiency else None

    @property
    def ceiling_below_rate(self) -> bool:
        """Whether the ceiling came out below the rate, which cannot be, by more than their rounds scatter."""
        rates = self._efficiencies
        return rates.size >= stats.MIN_ROUNDS and stats.geometric_mean(rates).low > 1.01

    @property
    def utilization(self) -> float | None:
        """Kernel time of a step / the step, 0 to 1, of a simulated run; None for measured ones."""
        step = self.step_s
        return min(1.0, self.simulated.kernel_s / step.value) if self.simulated and step else None

    @property
    def disturbed(self) -> float | None:
        """The share of the cores that others took, where too few rounds were free of it."""
        _, disturbance = counting(self.raw.disturbed, len(self.raw.block_samples_per_s))
        return disturbance if self.status == "ok" else None

    def pairing(self, role: str) -> Pairing | None:
        """The rounds beside the `previous` stage or the `baseline`; None where they were not compared."""
        return next((pairing for pairing in self.pairings if pairing.role == role), None)

    def speedup(self, role: str) -> Ratio | None:
        """Against the `previous` stage or the `baseline`; None where they were not compared."""
        pairing = self.pairing(role)
        return pairing.ratio if pairing and self.status == "ok" else None

    def previous(self, runs: Sequence["Run"]) -> "Run | None":
        """The run that this one was compared with, if it is among `runs`."""
        pairing = self.pairing("previous")
        return next((run for run in runs if pairing and run.id == pairing.against), None)

    @property
    def block_rates(self) -> Values:
        """samples/s of the undisturbed blocks."""
        return self._in_rounds(self.raw.block_samples_per_s)

    @property
    def _efficiencies(self) -> Values:
        """Rate / ceiling in each round that counts."""
        ceiling = np.array(self.raw.ceiling_samples_per_s)
        rates = np.array(self.raw.block_samples_per_s[: ceiling.size])
        return self._in_rounds(rates / ceiling)

    def _in_rounds(self, values: Values | list[float]) -> Values:
        """The values (one a round) of the rounds that count."""
        counts, _ = counting(self.raw.disturbed[: len(values)], len(values))
        return np.array(values)[counts]

    def _measured(self, values: list[float], on_device: Sequence[float] = ()) -> Values:
        """The values (one a step) after the warm-up, in the rounds that count; `on_device` if known."""
        steps, blocks = np.array(values[self.raw.warmup_steps :]), self.raw.block_steps
        steps = np.array(on_device) if len(on_device) == steps.size else steps
        counts, _ = counting(self.raw.disturbed, len(blocks))
        return steps[np.repeat(counts, blocks)] if steps.size == sum(blocks) else steps


class Comparison(msgspec.Struct, frozen=True):
    """B against A; of several pairs of processes, both runs are those of the first."""

    a: Run
    b: Run
    pairing: Pairing
    """The rounds of B beside those of A, in every pair of processes."""

    @property
    def ratio(self) -> Ratio:
        """B's speed / A's."""
        return self.pairing.ratio

    @property
    def pairs(self) -> int:
        """Pairs of processes that were measured."""
        return len(self.pairing.pairs)

    @property
    def rounds(self) -> int:
        """Rounds of all pairs of processes."""
        pairs = self.pairing.pairs
        return sum(min(len(pair.own_samples_per_s), len(pair.other_samples_per_s)) for pair in pairs)

    def describe(self) -> str:
        """One line for people."""
        ratio, pairing, simulated = self.ratio, self.pairing, self.a.simulated
        numbers = f"{ratio.ratio:.3f}x ({ratio.low:.3f}-{ratio.high:.3f}), {ratio.verdict}"
        if simulated and pairing.band is not None:
            basis = f"simulated on {self.a.device}, host {simulated.host}"
            basis += f", model error of the ratio ±{pairing.band:.0%}"
        else:
            basis = f"{self.rounds} {'interleaved' if pairing.interleaved else 'sequential'} rounds"
            basis += f" in {self.pairs} pairs of processes" * (self.pairs > 1) + ", allowing for A/A noise "
            basis += "that is unknown" if pairing.noise is None else f"of {pairing.noise:.1%}"
            basis += " (perfkit doctor --noise measures this machine's)"
        return f"{self.b.title} / {self.a.title}: {numbers}; {basis}"


# ---------------------------------------------------------------- JSON

_OF_SESSION = {"schema", "session", "created", "workload", "options", "preset", "device", "seed", "machine"}
_NOT_SHOWN = _OF_SESSION | {"stage", "samples_per_step", "pairings", "reference_samples_per_s"}
_DERIVED = (
    "samples_per_s",
    "disturbed",
    "step_s",
    "data_wait_s",
    "data_wait_share",
    "ceiling_samples_per_s",
    "pipeline_efficiency",
    "h2d_bytes_per_sample",
    "utilization",
)


def summary(run: Run) -> dict[str, Any]:
    """The plain data of a stage for `--json`: derived numbers beside the raw ones they come from."""
    ratios = {f"speedup_vs_{role}": run.speedup(role) for role in ("previous", "baseline")}
    fields = [name for name in Run.__struct_fields__ if name not in _NOT_SHOWN]
    values = {"name": run.stage, **{name: getattr(run, name) for name in (*fields, *_DERIVED)}, **ratios}
    plain: dict[str, Any] = msgspec.to_builtins(values)
    return plain


def document(runs: Sequence[Run]) -> dict[str, Any]:
    """A session as `--json` writes it and a report shows it."""
    first = runs[0]
    return {
        "schema": SCHEMA,
        "session": first.session,
        "machine": first.machine,
        "workload": {"name": first.workload, "options": first.options},
        "preset": first.preset,
        "device": first.device,
        "simulated": first.simulated is not None,
        "seed": first.seed,
        "stages": [summary(run) for run in runs],
    }


class _Version(msgspec.Struct):
    schema: int = SCHEMA


def read(text: bytes, kind: type[T], what: object) -> T:
    """A struct with runs from JSON: nothing is executed, every field is checked; else a `StoreError`."""
    name = kind.__name__.lower()
    try:
        version = msgspec.json.decode(text, type=_Version).schema
        if version == SCHEMA:
            return msgspec.json.decode(text, type=kind)
        if version < SCHEMA:
            return msgspec.convert(upgraded(msgspec.json.decode(text)), kind)
    except (ValueError, RecursionError) as problem:
        raise StoreError(
            f"{what} is not a {name} of this version of perfkit: {problem}", "Restore it, or measure again"
        ) from None
    raise StoreError(
        f"{what} is a {name} of a later version of perfkit: its schema is {version}, and {SCHEMA} is known",
        "Update perfkit",
    )
