"""Builds a `Run` from a worker's answers, with data-quality warnings."""

from __future__ import annotations

import datetime
import secrets
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from perfkit import machine
from perfkit.ladder.stages import Stage
from perfkit.results import stats
from perfkit.results.run import Communication, Pairing, Raw, Role, Run
from perfkit.studies.plan import Plan
from perfkit.worker.messages import Block, Description, Peak, Trained


@dataclass(frozen=True)
class Round:
    """The blocks of one round, one for each trial that was alive."""

    own: Block
    ceiling: Block | None
    """The step on a batch that is already on the device; None where it was not measured."""
    others: dict[str, Block]
    """By the other run's id."""


@dataclass
class Measurement:
    """What a trial has measured so far."""

    trained: Trained
    rounds: list[Round] = field(default_factory=list)
    peak: Peak | None = None
    communication: Communication | None = None
    gpu_utilization: list[float] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """samples/s of each block."""
        return [round.own.samples_per_s for round in self.rounds]

    def raw(self) -> Raw:
        """Every value that was measured."""
        warm, blocks = [self.trained.first, self.trained.warm], [round.own for round in self.rounds]
        return Raw(
            step_s=[value for block in [*warm, *blocks] for value in block.step_s],
            data_wait_s=[value for block in [*warm, *blocks] for value in block.data_wait_s],
            device_step_s=[value for block in blocks for value in block.device_step_s],
            warmup_steps=sum(len(block.step_s) for block in warm),
            block_samples_per_s=self.rates,
            ceiling_samples_per_s=[round.ceiling.samples_per_s for round in self.rounds if round.ceiling],
            gpu_utilization_nvml=self.gpu_utilization,
        )

    def pairing(self, role: Role, against: str, rates: list[float], noise: float | None) -> Pairing:
        """The rounds beside those of another run, or beside `rates`, its own, if they have none in common."""
        together = [round for round in self.rounds if against in round.others]
        own = [round.own.samples_per_s for round in together] or self.rates
        other = [round.others[against].samples_per_s for round in together] or rates
        return Pairing(against, role, bool(together), own, other, noise)


class RunBuilder:
    """Builds the run of a trial: from what is known before it starts, and from what was measured."""

    def __init__(self, session: str, stage: Stage, plan: Plan, description: Description) -> None:
        now = datetime.datetime.now(datetime.UTC)
        self._device, self._device_facts = plan.device, description.facts
        self._conditions = machine.read_conditions()
        self._facts = {f"not applied: {name}": why for name, why in (stage.not_applied or {}).items()}
        self._fields: dict[str, Any] = {
            "id": f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}", "session": session,
            "created": now.isoformat(timespec="seconds"), "stage": stage.name, "title": stage.title,
            "workload": description.reference, "options": description.options, "preset": plan.preset.name,
            "device": plan.device, "seed": plan.seed, "recipe": stage.recipe.to_dict(),
        }  # fmt: skip

    def unmeasured(self, status: Literal["not_applicable", "failed", "cancelled"], reason: str) -> Run:
        """The run of a trial without a measurement."""
        return self._build(status=status, reason=reason, facts=self._facts)

    def measured(self, measurement: Measurement, pairings: list[Pairing]) -> Run:
        """The run of a measured trial."""
        trained, peak = measurement.trained, measurement.peak
        assert peak is not None
        crosses = 0 if trained.data_on_device else trained.batch_bytes_per_sample
        steady = float(np.median([value for round in measurement.rounds for value in round.own.step_s]))
        conditions = machine.read_conditions()
        warnings = [*_quality_warnings(measurement, pairings), *self._disturbances(conditions)]
        return self._build(
            conditions,
            recipe=trained.recipe,
            raw=measurement.raw(),
            samples_per_step=trained.samples_per_step,
            mechanism=trained.mechanisms,
            pairings=pairings,
            losses=trained.losses,
            communication=measurement.communication,
            startup_s=trained.startup_s,
            compile_s=max(0.0, trained.first.step_s[0] - steady) if trained.compiled else None,
            peak_memory_bytes=peak.allocated,
            peak_reserved_bytes=peak.reserved,
            batch_bytes_per_sample=trained.batch_bytes_per_sample,
            h2d_bytes_per_sample=None if self._device.startswith("cpu") else crosses,
            facts=self._facts | self._training_facts(trained),
            warnings=list(dict.fromkeys(warnings)),
        )

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

    def _disturbances(self, after: dict[str, Any]) -> Iterator[str]:
        for conditions in (self._conditions, after):
            yield from machine.quality_warnings(conditions, own_processes=3, gpu=self._device_facts.uuid)


def _quality_warnings(measurement: Measurement, pairings: list[Pairing]) -> Iterator[str]:
    """What makes these numbers doubtful, each with what to do."""
    rates = np.array(measurement.rates)
    if stats.relative_iqr(rates) > 0.1:
        yield "blocks differ by more than 10%: close other programs, or use a longer preset"
    if len(rates) < stats.MIN_ROUNDS:
        yield (
            f"only {len(rates)} rounds: a smoke test, not enough for a verdict; use the preset quick or paper"
        )
    if stats.still_warming(rates):
        yield "the first block is slower than the later ones: warm-up was not over; use a longer preset"
    if not all(pairing.interleaved for pairing in pairings):
        yield "measured one after the other, not interleaved: they did not fit in memory together"
    if measurement.peak and measurement.peak.recompiles:
        yield "the model was recompiled while it was measured: keep its input shapes the same"
