"""Builds a `Run` from a worker's answers, with data-quality warnings."""

from __future__ import annotations

import datetime
import itertools
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from perfkit import machine
from perfkit.ladder.stages import Stage
from perfkit.results import stats
from perfkit.results.pairing import undisturbed
from perfkit.results.run import Communication, Pairing, Raw, Role, Run
from perfkit.results.simulated import THIS_MACHINE
from perfkit.simulate import bands
from perfkit.simulate.host import Host, Outcome
from perfkit.simulate.prediction import Prediction
from perfkit.studies.plan import Plan
from perfkit.worker.messages import Block, Description, Peak, Trained


@dataclass(frozen=True)
class Round:
    """The blocks of one round, by the ids of the runs that were alive."""

    blocks: Mapping[str, Block]
    ceilings: Mapping[str, Block] = field(default_factory=dict)
    """The step on a batch that is already on the device, where it was measured."""
    repeated: Mapping[str, Block] = field(default_factory=dict)
    """Blocks that were disturbed, and measured again."""
    disturbed: float = 0.0
    """The largest share of the cores that others took during one of its blocks."""
    seconds: float = 0.0


@dataclass
class Measurement:
    """What a trial has measured so far."""

    id: str
    """Of its run."""
    trained: Trained
    prediction: Prediction | None = None
    """Of a step on a simulated GPU."""
    rounds: list[Round] = field(default_factory=list)
    peak: Peak | None = None
    communication: Communication | None = None
    gpu_utilization: list[float] = field(default_factory=list)

    @property
    def blocks(self) -> list[Block]:
        """Its own, one a round."""
        return [round.blocks[self.id] for round in self.rounds]

    @property
    def step_s(self) -> float:
        """Median of its steps."""
        return float(np.median([value for block in self.blocks for value in block.step_s]))

    def rates(self, rounds: Sequence[Round]) -> list[float]:
        """samples/s of its own block in some rounds."""
        return [round.blocks[self.id].samples_per_s for round in rounds]

    def raw(self) -> Raw:
        """Every value that was measured."""
        warm, blocks = [self.trained.first, self.trained.warm], self.blocks
        return Raw(
            step_s=[value for block in [*warm, *blocks] for value in block.step_s],
            data_wait_s=[value for block in [*warm, *blocks] for value in block.data_wait_s],
            device_step_s=[value for block in blocks for value in block.device_step_s],
            warmup_steps=sum(len(block.step_s) for block in warm),
            block_samples_per_s=self.rates(self.rounds),
            block_steps=[len(block.step_s) for block in blocks],
            disturbed=_shares(self.rounds),
            repeated_samples_per_s=[
                round.repeated[self.id].samples_per_s for round in self.rounds if self.id in round.repeated
            ],
            ceiling_samples_per_s=[
                round.ceilings[self.id].samples_per_s for round in self.rounds if self.id in round.ceilings
            ],
            gpu_utilization_nvml=self.gpu_utilization,
        )

    def pairing(
        self, role: Role, other: Measurement, baseline: Measurement | None, noise: float | None,
        assumed: bool = False,
    ) -> Pairing:  # fmt: skip
        """Its rounds beside those of another run: the same rounds, or relative to the baseline in each."""
        together, mine = _common(self, other), list[Round]()
        if together:
            own, others, shares = self.rates(together), other.rates(together), _shares(together)
        elif baseline and (mine := _common(self, baseline)) and (theirs := _common(other, baseline)):
            mine, theirs = _counting(mine), _counting(theirs)
            own, others = self._relative(baseline, mine), other._relative(baseline, theirs)
            shares = [max(_shares([*mine, *theirs]))] * len(mine)
        else:
            own, others, shares = self.rates(self.rounds), other.rates(other.rounds), _shares(self.rounds)
        return Pairing(
            own, others, shares, against=other.id, role=role, interleaved=bool(together),
            relative=bool(not together and mine), noise=noise, assumed=assumed, band=self._band(other),
            seconds=sum(round.seconds for round in together or self.rounds),
        )  # fmt: skip

    def _band(self, other: Measurement) -> float | None:
        """The model's error of the ratio to another run; None where nothing is simulated."""
        return band_of_ratio(self.prediction, self.step_s, other.prediction, other.step_s)

    def _relative(self, baseline: Measurement, rounds: Sequence[Round]) -> list[float]:
        pairs = zip(self.rates(rounds), baseline.rates(rounds), strict=True)
        return [own / base for own, base in pairs]


def band_of_ratio(
    own: Prediction | None, own_step_s: float, other: Prediction | None, other_step_s: float
) -> float | None:
    """The model's error of the ratio of two rates, by the parts that kernels have in their steps."""
    if own is None or other is None:
        return None
    sides = [
        (one.recipe, one.kernel_s / step_s) for one, step_s in ((own, own_step_s), (other, other_step_s))
    ]
    return bands.of_ratio(own.gpu, *sides)


def _shares(rounds: Sequence[Round]) -> list[float]:
    return [round.disturbed for round in rounds]


def _counting(rounds: Sequence[Round]) -> list[Round]:
    """Those that were not disturbed; all of them where too few are left."""
    counts = undisturbed(_shares(rounds), len(rounds))
    return list(rounds if counts is None else itertools.compress(rounds, counts))


def _common(one: Measurement, other: Measurement) -> list[Round]:
    return [round for round in one.rounds if other.id in round.blocks]


class RunBuilder:
    """Builds the run of a trial: from what is known before it starts, and from what was measured."""

    def __init__(self, session: str, stage: Stage, plan: Plan, description: Description) -> None:
        now = datetime.datetime.now(datetime.UTC)
        self.culprit: machine.Program | None = None
        """The program that disturbed the measuring, where one did."""
        self.id = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        """Of the run."""
        self._device, self._device_facts = plan.device, description.facts
        self._conditions = machine.read_conditions()
        self._facts = {f"not applied: {name}": why for name, why in (stage.not_applied or {}).items()}
        self._fields: dict[str, Any] = {
            "id": self.id, "session": session,
            "created": now.isoformat(timespec="seconds"), "stage": stage.name, "title": stage.title,
            "workload": description.reference, "options": description.options, "preset": plan.preset.name,
            "device": plan.device, "seed": plan.seed, "recipe": stage.recipe.to_dict(),
        }  # fmt: skip

    def unmeasured(self, status: Literal["not_applicable", "failed", "cancelled"], reason: str) -> Run:
        """The run of a trial without a measurement."""
        return self._build(status=status, reason=reason, facts=self._facts)

    def computed(
        self, prediction: Prediction, outcome: Outcome, ceiling: Outcome, host: Host, pairings: list[Pairing]
    ) -> Run:
        """The run of a recipe on a virtual host, where nothing is measured."""
        recipe, planned = prediction.recipe, prediction.planned
        samples = recipe.batch_size * recipe.accumulation
        copied = prediction.step.copied_bytes
        return self._build(
            recipe=recipe.to_dict(),
            raw=Raw(
                step_s=[outcome.step_s], data_wait_s=[outcome.data_wait_s], block_steps=[1],
                block_samples_per_s=[samples / outcome.step_s],
                ceiling_samples_per_s=[samples / ceiling.step_s],
            ),
            samples_per_step=samples, mechanism=planned.mechanisms, pairings=pairings,
            peak_memory_bytes=planned.peak_bytes, peak_reserved_bytes=planned.reserved_bytes,
            batch_bytes_per_sample=copied // samples, h2d_bytes_per_sample=copied // samples,
            simulated=prediction.simulated(host.name, outcome.step_s, outcome.copy_s),
            facts=self._facts | {"host": host.describe()},
        )  # fmt: skip

    def measured(
        self, measurement: Measurement, pairings: list[Pairing], reference: float | None = None
    ) -> Run:
        """The run of a measured trial; `reference` is the baseline's rate in samples/s."""
        trained, peak = measurement.trained, measurement.peak or Peak(None, None, 0)
        crosses = 0 if trained.data_on_device else trained.batch_bytes_per_sample
        steady, prediction = measurement.step_s, measurement.prediction
        conditions, raw = machine.read_conditions(), measurement.raw()
        run = self._build(
            conditions,
            recipe=trained.recipe,
            raw=raw,
            samples_per_step=trained.samples_per_step,
            mechanism=trained.mechanisms,
            pairings=pairings,
            reference_samples_per_s=reference,
            losses=trained.losses,
            communication=measurement.communication,
            simulated=prediction.simulated(THIS_MACHINE, steady) if prediction else None,
            startup_s=trained.startup_s,
            compile_s=max(0.0, trained.first.step_s[0] - steady) if trained.compiled else None,
            peak_memory_bytes=peak.allocated,
            peak_reserved_bytes=peak.reserved,
            batch_bytes_per_sample=trained.batch_bytes_per_sample,
            h2d_bytes_per_sample=None if self._device.startswith("cpu") else crosses,
            facts=self._facts | self._training_facts(trained) | _left_out(raw),
        )
        warnings = [*self._disturbed(run), *_quality_warnings(run, peak), *self._disturbances(conditions)]
        return msgspec.structs.replace(run, warnings=list(dict.fromkeys(warnings)))

    def _build(self, conditions: dict[str, Any] | None = None, **fields: Any) -> Run:
        around = {"before": self._conditions, "after": conditions or machine.read_conditions()}
        device = {name: str(value) for name, value in msgspec.to_builtins(self._device_facts).items()}
        here = {**machine.facts(), "device": device, "conditions": around}
        return Run(**{**self._fields, **fields}, machine=here)

    def _training_facts(self, trained: Trained) -> dict[str, str]:
        facts = dict(trained.facts) | ({"weights": trained.weights} if trained.weights else {})
        if trained.malloc and self._device.startswith("cpu") and sys.platform == "linux":
            facts["allocator"] = f"freed memory is kept (GLIBC_TUNABLES={trained.malloc})"
        if trained.wait_policy and self._device.startswith("cpu"):
            facts["compute threads"] = f"started with OMP_WAIT_POLICY={trained.wait_policy}"
        if trained.compiled:
            facts["compile cache"] = "warm" if trained.compile_counters.cache_hits else "cold"
        return facts

    def _disturbed(self, run: Run) -> Iterator[str]:
        if run.disturbed is None:
            return
        share, one = f"{run.disturbed:.0%} of the cores", self.culprit
        if one and one.share > run.disturbed / 4:
            yield f"other programs took {share} ({one.name} {one.share:.0%}): close them, then run it again"
        else:
            yield f"others took {share} (no program here took much; other guests of the host?): repeat it"

    def _disturbances(self, after: dict[str, Any]) -> Iterator[str]:
        for conditions in (self._conditions, after):
            yield from machine.quality_warnings(conditions, own_processes=3, gpu=self._device_facts.uuid)


def _left_out(raw: Raw) -> dict[str, str]:
    """The rounds that do not count, as a fact."""
    count = len(raw.block_samples_per_s)
    counts = undisturbed(raw.disturbed, count)
    if counts is None or counts.all():
        return {}
    return {"rounds left out": f"{count - counts.sum()} of {count}, disturbed by other programs"}


def _quality_warnings(run: Run, peak: Peak) -> Iterator[str]:
    """What makes these numbers doubtful, each with what to do."""
    rates = run.block_rates
    if stats.relative_iqr(rates) > 0.1:
        yield "blocks differ by more than 10%: close other programs, or use a longer preset"
    if (count := len(run.raw.block_samples_per_s)) < stats.MIN_ROUNDS:
        rounds = f"only {count} round{'s' * (count != 1)}"
        yield f"{rounds}: a smoke test, not enough for a verdict; use the preset quick or paper"
    if stats.still_warming(rates):
        yield "the first block is slower than the later ones: warm-up was not over; use a longer preset"
    if not all(pairing.interleaved or pairing.relative for pairing in run.pairings):
        yield "measured one after the other, not interleaved: they did not fit in memory together"
    if run.ceiling_below_rate:
        yield "the ceiling came out below the rate, which cannot be: the machine was not steady; run it again"
    if peak.recompiles:
        yield "the model was recompiled while it was measured: keep its input shapes the same"
