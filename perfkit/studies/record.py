"""What a stage has measured, and the `Run` that it leaves, with warnings about the quality of its data."""

import datetime
import itertools
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from msgspec import structs, to_builtins

from perfkit import machine
from perfkit.errors import Cancelled, PerfkitError
from perfkit.ladder.catalogue import Stage
from perfkit.machine import cores
from perfkit.process.child import Conversation
from perfkit.results import stats
from perfkit.results.run import DISTURBED, Pairing, Raw, Role, Run, counting
from perfkit.results.stats import Values
from perfkit.studies.sources import Plan
from perfkit.worker.messages import Block, Description, Trained

_AS_TRAINED = ("recipe", "samples_per_step", "losses", "startup_s", "batch_bytes_per_sample")
"""What a run takes over from the report of its training."""


def begun(session: str, stage: Stage, plan: Plan, description: Description) -> Run:
    """The run of a stage before it starts: nothing is measured yet."""
    now = datetime.datetime.now(datetime.UTC)
    device = {name: str(value) for name, value in to_builtins(description.facts).items()}
    conditions = {"before": cores.read_conditions()}
    return Run(
        id=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        session=session,
        created=now.isoformat(timespec="seconds"),
        stage=stage.name,
        title=stage.title,
        workload=plan.workload,
        options=description.options,
        preset=plan.preset.name,
        device=plan.device,
        seed=plan.seed,
        recipe=stage.recipe.to_dict(),
        status="not_applicable" if stage.reason else "cancelled",
        reason=stage.reason or "stopped before its first round",
        machine={**machine.facts(), "device": device, "conditions": conditions},
        facts={f"not applied: {name}": why for name, why in (stage.not_applied or {}).items()},
    )


def ended(run: Run, **fields: Any) -> Run:
    """A run with what became of it, and with the conditions of the machine now."""
    conditions = {**run.machine["conditions"], "after": cores.read_conditions()}
    return structs.replace(run, machine={**run.machine, "conditions": conditions}, **fields)


@dataclass
class Round:
    """The blocks of one round, by the trials that took part."""

    blocks: dict["Trial", Block] = field(default_factory=dict)
    ceilings: dict["Trial", Block] = field(default_factory=dict)
    """The step on a batch that is already on the device, where it was measured."""
    disturbed: float = 0.0
    """The largest share of the cores that others took during one of the blocks."""


@dataclass(eq=False)
class Trial:
    """A stage that is measured, and what it has measured so far."""

    stage: Stage
    run: Run
    """As far as it is known before its end; `cancelled` as long as it may still be measured."""
    child: Conversation | None = None
    """The process that trains; with several ranks, a process for each."""
    trained: Trained | None = None
    """What it reported when it was warm."""
    rounds: list[Round] = field(default_factory=list)
    recompiles: int = 0
    gpu_utilization: list[float] = field(default_factory=list)
    gpu_bytes: int = 0
    """What its process takes of the GPU's memory, seen from outside."""
    disturber: tuple[str, float] = "", 0.0
    """The program that disturbed its rounds most."""

    @property
    def is_open(self) -> bool:
        return self.run.status == "cancelled"

    @property
    def has_result(self) -> bool:
        return self.is_open and bool(self.rounds)

    def fail(self, problem: PerfkitError) -> None:
        """Ends it with a failure; that a person stopped it concerns all trials, and is raised."""
        if isinstance(problem, Cancelled):
            raise problem
        self.stop()
        self.run = ended(self.run, status="failed", reason=str(problem))

    def stop(self) -> None:
        if self.child:
            self.child.stop()
        self.child = None

    def rates(self, rounds: Sequence[Round]) -> Values:
        """samples/s of this stage in some rounds."""
        return np.array([round.blocks[self].samples_per_s for round in rounds])

    def common(self, other: "Trial") -> list[Round]:
        """The rounds in which both took part."""
        return [round for round in self.rounds if other in round.blocks]

    def pairing(self, role: Role, other: "Trial", baseline: "Trial", noise: float | None) -> Pairing:
        """The rounds beside those of another stage.

        If the two never shared a round, both are related to the baseline in the rounds that each shared with
        it; without such rounds they are compared as they are.
        """
        together, mine, theirs = self.common(other), self.common(baseline), other.common(baseline)
        if together or not (mine and theirs):
            own, others = self.rates(together or self.rounds), other.rates(together or other.rounds)
            shares = _shares(together or self.rounds)
        else:
            mine, theirs = _counting(mine), _counting(theirs)
            own = self.rates(mine) / baseline.rates(mine)
            others = other.rates(theirs) / baseline.rates(theirs)
            shares = [max(_shares([*mine, *theirs]))] * len(mine)
        return Pairing(
            own.tolist(),
            others.tolist(),
            shares,
            against=other.run.id,
            role=role,
            interleaved=bool(together),
            noise=noise,
        )

    def result(self, pairings: list[Pairing], reference: float | None = None) -> Run:
        """The run; `reference` is the baseline's rate in samples/s."""
        assert self.trained, "it has rounds"
        trained, raw = self.trained, self._raw(self.trained.warmup)
        facts, compile_s = {**self.run.facts, **trained.facts}, None
        if trained.compile_counters.graphs:
            facts["compile cache"] = "warm" if trained.compile_counters.cache_hits else "cold"
            step_s = float(np.median(raw.step_s[raw.warmup_steps :]))
            compile_s = max(0.0, raw.step_s[0] - step_s)
        run = ended(
            self.run,
            status="ok",
            reason="",
            facts=facts,
            raw=raw,
            mechanism=trained.mechanisms,
            pairings=pairings,
            reference_samples_per_s=reference,
            compile_s=compile_s,
            **{name: getattr(trained, name) for name in _AS_TRAINED},
        )
        return structs.replace(run, warnings=list(dict.fromkeys(_quality_warnings(run, self))))

    def _raw(self, warm: Block) -> Raw:
        blocks = [round.blocks[self] for round in self.rounds]
        ceilings = [round.ceilings[self] for round in self.rounds if self in round.ceilings]
        steps = sum(blocks, warm)
        return Raw(
            step_s=steps.step_s,
            data_wait_s=steps.data_wait_s,
            device_step_s=steps.device_step_s[len(warm.device_step_s) :],
            warmup_steps=len(warm.step_s),
            block_samples_per_s=[block.samples_per_s for block in blocks],
            block_steps=[len(block.step_s) for block in blocks],
            disturbed=_shares(self.rounds),
            ceiling_samples_per_s=[ceiling.samples_per_s for ceiling in ceilings],
            gpu_utilization_nvml=self.gpu_utilization,
        )


def _shares(rounds: Sequence[Round]) -> list[float]:
    return [round.disturbed for round in rounds]


def _counting(rounds: Sequence[Round]) -> list[Round]:
    """The undisturbed rounds; all of them if too few are left."""
    counts, _ = counting(_shares(rounds), len(rounds))
    return list(itertools.compress(rounds, counts))


def undisturbed(rounds: Sequence[Round]) -> list[Round]:
    """The rounds that other programs did not disturb."""
    return [round for round in rounds if round.disturbed <= DISTURBED]


def _quality_warnings(run: Run, trial: Trial) -> Iterator[str]:
    """What makes these numbers doubtful, each with what to do."""
    rates, count = run.block_rates, len(run.raw.block_samples_per_s)
    if run.disturbed is not None:
        who, (program, share) = "none that runs here: guests of the same host?", trial.disturber
        if share > run.disturbed / 4:
            who = f"{program} {share:.0%}"
        yield f"other programs took {run.disturbed:.0%} of the cores ({who}): close them, then run it again"
    if stats.relative_iqr(rates) > 0.1:
        yield "blocks differ by more than 10%: close other programs, or use a longer preset"
    if count < stats.MIN_ROUNDS:
        yield f"too few rounds for a verdict ({count}): use the preset quick or paper"
    if stats.still_warming(rates):
        yield "the first block is slower than the later ones: warm-up was not over; use a longer preset"
    if (beside := run.pairing("previous")) and not beside.interleaved:
        yield "not interleaved with the stage before: they did not fit in memory together"
    if run.ceiling_below_rate:
        yield "the ceiling came out below the rate, which cannot be: the machine was not steady; run it again"
    if trial.recompiles:
        yield "the model was recompiled while it was measured: keep its input shapes the same"
    for conditions in run.machine["conditions"].values():
        gpu = run.machine["device"].get("uuid")
        yield from cores.quality_warnings(conditions, gpu)
