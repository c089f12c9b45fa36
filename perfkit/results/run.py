"""Runs: what a measurement leaves behind. Raw values are kept, everything else is derived from them here."""

import math
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
from perfkit.results.rounds import Count, Duration, Pairing, Rate, Seconds, Share, clean, joined
from perfkit.results.stats import Estimate, Nested, Ratio, Spread, Values
from perfkit.results.upgrade import SCHEMA, upgraded

T = TypeVar("T")

AGAIN = "baseline_again"
"""The stage that measures the baseline once more in another process: the A/A row."""

Status = Literal["ok", "not_applicable", "failed", "cancelled"]


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


class Raw(msgspec.Struct, frozen=True):
    """Every measured value in the order of time, warm-up included."""

    step_s: list[Duration] = []
    data_wait_s: list[Seconds] = []
    warmup_steps: Count = 0
    device_step_s: list[Duration] = []
    """CUDA only: device time between the ends of successive measured steps, within each block."""
    block_samples_per_s: list[Rate] = []
    """One slice in each round."""
    ceiling_samples_per_s: list[Rate] = []
    """Slices on one batch that is already on the device, after the rounds of the first incarnation."""
    gpu_utilization_nvml: list[float] = []
    block_steps: list[Count] = []
    disturbed: list[Share] = []
    """For each round, the largest share of the cores that others took during one of its slices."""
    incarnations: list[Count] = []
    """How many rounds each incarnation has; empty for one."""
    further_warmup_s: list[list[Duration]] = []
    """The steps of the warm-up of every further incarnation."""

    def __post_init__(self) -> None:
        if len(self.ceiling_samples_per_s) > len(self.block_samples_per_s):
            raise ValueError("it holds more ceilings than blocks")
        if self.incarnations and sum(self.incarnations) != len(self.block_samples_per_s):
            raise ValueError("its incarnations have other rounds than it holds")

    @property
    def sizes(self) -> list[int]:
        """How many rounds each incarnation has."""
        return self.incarnations or [len(self.block_samples_per_s)]


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
        """Throughput: geometric mean over the rounds, each as clean as it was, with its 95% interval.

        The ratio of two runs is the ratio of these values. A run that was not measured in the same rounds as
        the baseline has the baseline's rate times its ratio to the baseline.
        """
        rates = np.array(self.raw.block_samples_per_s)
        if self.status != "ok" or not rates.size:
            return None
        if self.simulated:
            return stats.widened(stats.geometric_mean(rates), self.simulated.band)
        counts = stats.weights(self.raw.disturbed, rates.size)
        own = stats.nested(np.log(rates), self.raw.sizes, counts)
        baseline, centre = self.pairing("baseline"), own.centre
        if self.reference_samples_per_s and baseline:
            centre = math.log(self.reference_samples_per_s * baseline.ratio.ratio)
        return Estimate(*(math.exp(centre + offset) for offset in (0.0, -own.half, own.half)))

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
        """Throughput / compute-only rate, of the incarnation in which both were measured."""
        share = self._compute_only
        is_known = self.samples_per_s and share and not self.ceiling_below_rate
        return min(1.0, math.exp(share.centre)) if is_known and share else None

    @property
    def ceiling_samples_per_s(self) -> float | None:
        """The compute-only rate: what the model could do if data were free."""
        rate, efficiency = self.samples_per_s, self.pipeline_efficiency
        return rate.value / efficiency if rate and efficiency else None

    @property
    def ceiling_below_rate(self) -> bool:
        """Whether the compute-only rate came out below the rate, which cannot be, by more than chance."""
        share = self._compute_only
        return bool(share and share.rounds >= stats.MIN_ROUNDS and share.centre - share.half > 0.01)

    @cached_property
    def _compute_only(self) -> Nested | None:
        """The logarithm of the rate / that on a cached batch, with its interval."""
        cached = np.array(self.raw.ceiling_samples_per_s)
        first = slice(self.raw.sizes[0] if self.raw.incarnations else cached.size)
        rates = np.array(self.raw.block_samples_per_s[first])
        if not (cached.size and rates.size):
            return None
        counts = stats.weights(self.raw.disturbed[first], rates.size)
        exactly = Spread(0.0, stats.UNKNOWN.freedom)  # they are of one process
        own = stats.nested(np.log(rates), [rates.size], counts, exactly)
        return stats.difference(
            own, stats.nested(np.log(cached), [cached.size], np.ones(cached.size), exactly)
        )

    @property
    def utilization(self) -> float | None:
        """Kernel time of a step / the step, 0 to 1, of a simulated run; None for measured ones."""
        step = self.step_s
        return min(1.0, self.simulated.kernel_s / step.value) if self.simulated and step else None

    @property
    def disturbed(self) -> float | None:
        """The mean share of the cores that others took, if that spoiled more than half of the rounds."""
        shares = self.raw.disturbed
        if self.status != "ok" or not shares or stats.weights(shares, len(shares)).mean() > 0.5:
            return None
        return float(np.mean(shares))

    def pairing(self, role: str) -> Pairing | None:
        """The rounds with the `previous` stage or the `baseline`; None where they were not compared."""
        return next((pairing for pairing in self.pairings if pairing.role == role), None)

    def speedup(self, role: str) -> Ratio | None:
        """Against the `previous` stage or the `baseline`; None where they were not compared."""
        pairing = self.pairing(role)
        return pairing.ratio if pairing and self.status == "ok" else None

    def previous(self, runs: Sequence["Run"]) -> "Run | None":
        """The run that this one was compared with, if it is among `runs`."""
        pairing = self.pairing("previous")
        return next((run for run in runs if pairing and run.id == pairing.against), None)

    def _measured(self, values: list[float], on_device: Sequence[float] = ()) -> Values:
        """The values (one a step) after the warm-up, in the rounds that count; `on_device` if known."""
        steps, blocks = np.array(values[self.raw.warmup_steps :]), self.raw.block_steps
        steps = np.array(on_device) if len(on_device) == steps.size else steps
        counts = clean(self.raw.disturbed, len(blocks))
        return steps[np.repeat(counts, blocks)] if steps.size == sum(blocks) else steps


def continued(earlier: Run, now: Run) -> Run:
    """A run with the rounds of an earlier one of the same recipe before its own."""
    raw, more = earlier.raw, now.raw
    steps, waits = more.step_s[more.warmup_steps :], more.data_wait_s[more.warmup_steps :]
    whole = Raw(
        step_s=[*raw.step_s, *steps],
        data_wait_s=[*raw.data_wait_s, *waits],
        warmup_steps=raw.warmup_steps,
        device_step_s=[*raw.device_step_s, *more.device_step_s],
        block_samples_per_s=[*raw.block_samples_per_s, *more.block_samples_per_s],
        ceiling_samples_per_s=raw.ceiling_samples_per_s,
        gpu_utilization_nvml=[*raw.gpu_utilization_nvml, *more.gpu_utilization_nvml],
        block_steps=[*raw.block_steps, *more.block_steps],
        disturbed=[*raw.disturbed, *more.disturbed],
        incarnations=[*raw.sizes, *more.sizes],
        further_warmup_s=[*raw.further_warmup_s, more.step_s[: more.warmup_steps], *more.further_warmup_s],
    )
    pairings = []
    for pairing in now.pairings:
        before = earlier.pairing(pairing.role)
        pairings.append(joined(before, pairing) if before else pairing)
    return msgspec.structs.replace(now, raw=whole, pairings=pairings)


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
    def incarnations(self) -> int:
        """How often the processes of both sides were started."""
        return len(self.pairing.rounds.incarnations) or 1

    @property
    def rounds(self) -> int:
        """Rounds of all incarnations."""
        rounds = self.pairing.rounds
        return min(len(rounds.own_samples_per_s), len(rounds.other_samples_per_s))

    def describe(self) -> str:
        """One line for people."""
        ratio, pairing, simulated = self.ratio, self.pairing, self.a.simulated
        numbers = f"{ratio.ratio:.3f}× ({ratio.low:.3f}–{ratio.high:.3f}), {ratio.verdict}"
        if simulated and pairing.band is not None:
            basis = f"simulated on {self.a.device}, host {simulated.host}"
            basis += f", model error of the ratio ±{pairing.band:.0%}"
        else:
            basis = f"{self.rounds} {'interleaved' if pairing.interleaved else 'sequential'} rounds"
            if self.incarnations > 1:
                basis += f" in {self.incarnations} incarnations"
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
    """The plain data of a stage for `--json`: derived numbers next to the raw ones they come from."""
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
