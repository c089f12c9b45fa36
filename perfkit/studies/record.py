"""What a training has measured, and the `Run` that it leaves, with warnings about the quality of its data."""

import datetime
import itertools
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from perfkit import machine
from perfkit.ladder.catalogue import Stage
from perfkit.results import stats
from perfkit.results.pairing import Pairing, Role, undisturbed
from perfkit.results.run import Communication, Raw, Run
from perfkit.results.stats import Values
from perfkit.studies.sources import Plan
from perfkit.worker.messages import Block, Description, Peak, Trained

Noise = tuple[float | None, bool]
"""The A/A noise of a device, and whether it is assumed."""


@dataclass
class Round:
    """The blocks of one round, by the ids of the runs that took part."""

    blocks: dict[str, Block] = field(default_factory=dict)
    ceilings: dict[str, Block] = field(default_factory=dict)
    """The step on a batch that is already on the device, where it was measured."""
    disturbed: float = 0.0
    """The largest share of the cores that others took during one of the blocks."""


@dataclass(eq=False)
class Measurement:
    """What a training has measured so far."""

    id: str
    """The id of its run."""
    trained: Trained | None = None
    """What its process reported when it was warm."""
    rounds: list[Round] = field(default_factory=list)
    peak: Peak = field(default_factory=lambda: Peak(None, None, 0))
    communication: Communication | None = None
    gpu_utilization: list[float] = field(default_factory=list)
    disturber: machine.Program | None = None
    """The program that disturbed its rounds most."""

    def rates(self, rounds: Sequence[Round]) -> Values:
        """samples/s of this training in some rounds."""
        return np.array([round.blocks[self.id].samples_per_s for round in rounds])

    def common(self, other: "Measurement") -> list[Round]:
        """The rounds in which both took part."""
        return [round for round in self.rounds if other.id in round.blocks]

    def raw(self) -> Raw:
        """Every value that was measured."""
        warm = [self.trained.first, self.trained.warm] if self.trained else []
        blocks = [round.blocks[self.id] for round in self.rounds]
        ceilings = [round.ceilings[self.id] for round in self.rounds if self.id in round.ceilings]
        return Raw(
            step_s=[value for block in [*warm, *blocks] for value in block.step_s],
            data_wait_s=[value for block in [*warm, *blocks] for value in block.data_wait_s],
            device_step_s=[value for block in blocks for value in block.device_step_s],
            warmup_steps=sum(len(block.step_s) for block in warm),
            block_samples_per_s=[block.samples_per_s for block in blocks],
            block_steps=[len(block.step_s) for block in blocks],
            disturbed=_shares(self.rounds),
            ceiling_samples_per_s=[ceiling.samples_per_s for ceiling in ceilings],
            gpu_utilization_nvml=self.gpu_utilization,
        )

    def pairing(self, role: Role, other: "Measurement", baseline: "Measurement", noise: Noise) -> Pairing:
        """The rounds beside those of another training.

        If the two never shared a round, both are related to the baseline in the rounds that each shared with
        it; without such rounds they are compared as they are.
        """
        together, mine, theirs = self.common(other), self.common(baseline), other.common(baseline)
        if not together and mine and theirs:
            mine, theirs = _counting(mine), _counting(theirs)
            own = self.rates(mine) / baseline.rates(mine)
            others = other.rates(theirs) / baseline.rates(theirs)
            shares = [max(_shares([*mine, *theirs]))] * len(mine)
        else:
            own, others = self.rates(together or self.rounds), other.rates(together or other.rounds)
            shares = _shares(together or self.rounds)
        return Pairing(
            own.tolist(),
            others.tolist(),
            shares,
            against=other.id,
            role=role,
            interleaved=bool(together),
            noise=noise[0],
            assumed=noise[1],
        )


def _shares(rounds: Sequence[Round]) -> list[float]:
    return [round.disturbed for round in rounds]


def _counting(rounds: Sequence[Round]) -> list[Round]:
    """The undisturbed rounds; all of them if too few are left."""
    counts = undisturbed(_shares(rounds), len(rounds))
    return list(rounds if counts is None else itertools.compress(rounds, counts))


class RunBuilder:
    """Builds the run of a stage: from what is known before it starts, and from what was measured."""

    def __init__(self, session: str, stage: Stage, plan: Plan, description: Description) -> None:
        now = datetime.datetime.now(datetime.UTC)
        self.id = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        self._device = description.facts
        self._before = machine.read_conditions()
        self._facts = {f"not applied: {name}": why for name, why in (stage.not_applied or {}).items()}
        self._fields: dict[str, Any] = {
            "id": self.id,
            "session": session,
            "created": now.isoformat(timespec="seconds"),
            "stage": stage.name,
            "title": stage.title,
            "workload": description.reference,
            "options": description.options,
            "preset": plan.preset.name,
            "device": plan.device,
            "seed": plan.seed,
            "recipe": stage.recipe.to_dict(),
        }

    def build(self, facts: Mapping[str, str] | None = None, **fields: Any) -> Run:
        """A run with further fields."""
        device = {name: str(value) for name, value in msgspec.to_builtins(self._device).items()}
        conditions = {"before": self._before, "after": machine.read_conditions()}
        here = {**machine.facts(), "device": device, "conditions": conditions}
        return Run(**{**self._fields, **fields}, machine=here, facts={**self._facts, **(facts or {})})

    def unmeasured(self, status: Literal["not_applicable", "failed", "cancelled"], reason: str) -> Run:
        """The run of a stage that was not measured."""
        return self.build(status=status, reason=reason)

    def measured(
        self, measurement: Measurement, pairings: list[Pairing], reference: float | None = None
    ) -> Run:
        """The run of a measured stage; `reference` is the baseline's rate in samples/s."""
        trained, raw = measurement.trained, measurement.raw()
        assert trained, "it has rounds"
        facts, compile_s = dict(trained.facts), None
        if trained.compile_counters.graphs:
            facts["compile cache"] = "warm" if trained.compile_counters.cache_hits else "cold"
            step_s = float(np.median(raw.step_s[raw.warmup_steps :]))
            compile_s = max(0.0, trained.first.step_s[0] - step_s)
        copied = None if self._fields["device"].startswith("cpu") else trained.batch_bytes_per_sample
        run = self.build(
            facts,
            recipe=trained.recipe,
            raw=raw,
            samples_per_step=trained.samples_per_step,
            mechanism=trained.mechanisms,
            pairings=pairings,
            reference_samples_per_s=reference,
            losses=trained.losses,
            communication=measurement.communication,
            startup_s=trained.startup_s,
            compile_s=compile_s,
            peak_memory_bytes=measurement.peak.allocated,
            peak_reserved_bytes=measurement.peak.reserved,
            batch_bytes_per_sample=trained.batch_bytes_per_sample,
            h2d_bytes_per_sample=copied,
        )
        warnings = [*_quality_warnings(run, measurement)]
        for conditions in run.machine["conditions"].values():
            warnings += machine.quality_warnings(conditions, own_processes=3, gpu=self._device.uuid)
        return msgspec.structs.replace(run, warnings=list(dict.fromkeys(warnings)))


def _quality_warnings(run: Run, measurement: Measurement) -> Iterator[str]:
    """What makes these numbers doubtful, each with what to do."""
    rates, count = run.block_rates, len(run.raw.block_samples_per_s)
    if run.disturbed is not None:
        who, program = "none that runs here: guests of the same host?", measurement.disturber
        if program and program.share > run.disturbed / 4:
            who = f"{program.name} {program.share:.0%}"
        yield f"other programs took {run.disturbed:.0%} of the cores ({who}): close them, then run it again"
    if stats.relative_iqr(rates) > 0.1:
        yield "blocks differ by more than 10%: close other programs, or use a longer preset"
    if count < stats.MIN_ROUNDS:
        yield f"too few rounds for a verdict ({count}): use the preset quick or paper"
    if stats.still_warming(rates):
        yield "the first block is slower than the later ones: warm-up was not over; use a longer preset"
    if (beside := run.pairing("baseline")) and not beside.interleaved:
        yield "measured one after the other, not interleaved: they did not fit in memory together"
    if run.ceiling_below_rate:
        yield "the ceiling came out below the rate, which cannot be: the machine was not steady; run it again"
    if measurement.peak.recompiles:
        yield "the model was recompiled while it was measured: keep its input shapes the same"
