"""The engine of all studies: trials in, runs out.

Every trial runs in a fresh process. The processes of the previous trial and of the first one (the baseline)
stay alive and idle, and measured blocks alternate among the three in random order, so that the drift of a
noisy machine cancels within a round.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from perfkit import machine
from perfkit.errors import Cancelled, PerfkitError, RunFailed
from perfkit.ladder.presets import Preset
from perfkit.ladder.stages import Stage
from perfkit.process.child import Child
from perfkit.process.ranks import RankGroup
from perfkit.results import noise, stats
from perfkit.results.run import Pairing, Role, Run
from perfkit.results.store import RunStore
from perfkit.studies.record import Measurement, Round, RunBuilder
from perfkit.studies.setup import Setup
from perfkit.worker.messages import (
    Block,
    MeasureBlock,
    MeasureCeiling,
    MeasureCommunication,
    ReadPeak,
    Trained,
)


@dataclass(frozen=True)
class Schedule:
    """How long a trial is measured, and beside which others."""

    preset: Preset
    """Its rounds are the least number."""
    baseline_only: bool = False
    """Interleaved with the baseline alone, and ended once it is measured: nothing is compared with it."""
    ceiling: bool = True
    """Whether each round also measures the step on a batch that is already on the device."""
    precision: float | None = None
    """Further rounds, until half the width of the interval / ratio to the previous trial is at most this …"""
    budget_s: float = 0.0
    """… or until this many seconds of rounds are spent."""


@dataclass(frozen=True)
class Trial:
    """One recipe to measure, and how."""

    stage: Stage
    schedule: Schedule
    total: int
    """Trials that the study is to have, as far as is known: for the progress bar."""
    workload: str | None = None
    """Another workload than the plan's: an exported script."""


def measure(trials: Iterable[Trial], setup: Setup, store: RunStore | None = None) -> Iterator[Run]:
    """Measures trials one after the other; the first is the baseline of the others.

    The next trial is drawn only after the run of the last one was stored and yielded, so a generator of
    trials can decide by the results so far what comes next, and when to stop. A trial that fails does not
    stop the others; a cancelled one is the last.
    """
    session = _Session(setup)
    try:
        for trial in trials:
            setup.progress.start(trial.stage.title, trial.total)
            run = session.measure(trial)
            if store:
                store.add(run)
            setup.progress.finish(run)
            yield run
            if run.status == "cancelled":
                break
    finally:
        session.close()


@dataclass
class LiveTrial:
    """What a trial has measured, and its child while that lives."""

    run_id: str
    child: Child | RankGroup | None
    rates: list[float]


@dataclass
class _Session:
    """Trials of one session, and the children that stay alive between them."""

    setup: Setup
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    baseline: LiveTrial | None = None
    previous: LiveTrial | None = None

    def __post_init__(self) -> None:
        self._random = random.Random(self.setup.plan.seed)

    def measure(self, trial: Trial) -> Run:
        """The run of a trial, or of why it could not be measured."""
        builder = RunBuilder(self.id, trial.stage, self.setup.plan, self.setup.description)
        if trial.stage.reason:
            return builder.unmeasured("not_applicable", trial.stage.reason)
        try:
            child, measurement = self._measure(trial)
        except Cancelled as stopped:
            return builder.unmeasured("cancelled", str(stopped))
        except PerfkitError as problem:
            return builder.unmeasured("failed", str(problem))
        run = builder.measured(measurement, self._pairings(measurement))
        self._keep(LiveTrial(run.id, child, measurement.rates), trial.schedule)
        return run

    def close(self) -> None:
        """Ends every child."""
        for live in self._others():
            self._stop(live)

    def _measure(self, trial: Trial) -> tuple[Child | RankGroup, Measurement]:
        try:
            return self._attempt(trial)
        except RunFailed as problem:
            if problem.kind != "out of memory" or not self._alive():
                raise
        # They may not fit in memory together: then alone, against what the others measured before.
        self.close()
        return self._attempt(trial)

    def _attempt(self, trial: Trial) -> tuple[Child | RankGroup, Measurement]:
        setup, recipe, schedule = self.setup, trial.stage.recipe, trial.schedule
        preset = schedule.preset
        child, trained = setup.train(
            recipe, preset.loss_steps, preset.warmup_s, child=setup.child(trial.workload)
        )
        try:
            _require_mechanisms(trained)
            measurement = Measurement(trained)
            with machine.sample_utilization(setup.description.facts.uuid) as utilization:
                for share in self._shares(schedule, measurement):
                    setup.progress.measured(share)
                    measurement.rounds.append(self._round(child, schedule, measurement, utilization))
            measurement.peak = child.ask(ReadPeak())
            if recipe.ranks > 1:
                measurement.communication = child.ask(MeasureCommunication(preset.block_samples))
        except BaseException:
            setup.stop(child)
            raise
        return child, measurement

    def _shares(self, schedule: Schedule, measurement: Measurement) -> Iterator[float]:
        """The share of the measuring that is done, before each round that is still needed."""
        started, rounds = time.monotonic(), schedule.preset.rounds
        while True:
            count, spent = len(measurement.rounds), time.monotonic() - started
            if count >= rounds and (spent > schedule.budget_s or self._precise(schedule, measurement)):
                return
            yield max(count / rounds, spent / (schedule.budget_s or math.inf))

    def _precise(self, schedule: Schedule, measurement: Measurement) -> bool:
        """Whether the ratio to the previous trial is known as precisely as is asked for."""
        if schedule.precision is None or self.previous is None:
            return True
        ratio = self._pairing("previous", self.previous, measurement).ratio
        return stats.narrow_enough(ratio, len(measurement.rounds), schedule.precision)

    def _round(
        self, child: Child | RankGroup, schedule: Schedule, measurement: Measurement, utilization: list[float]
    ) -> Round:
        preset = schedule.preset
        command = MeasureBlock(preset.block_samples, queues=preset.queues)
        order: list[LiveTrial | None] = [None, *self._alive()]
        self._random.shuffle(order)
        others: dict[str, Block] = {}
        for live in order:
            if live is None:
                start = len(utilization)  # what was sampled before is of the others' blocks
                own = child.ask(command)
                measurement.gpu_utilization += utilization[start:]
                ceiling = child.ask(MeasureCeiling(preset.block_samples)) if schedule.ceiling else None
            elif live.child:
                live.child.deadline = child.deadline
                others[live.run_id] = live.child.ask(command)
        return Round(own, ceiling, others)

    def _others(self) -> list[LiveTrial]:
        """The trials to compare with: the previous one and the baseline, which may be the same."""
        return list({live.run_id: live for live in (self.previous, self.baseline) if live}.values())

    def _alive(self) -> list[LiveTrial]:
        """Those whose blocks can be interleaved."""
        return [live for live in self._others() if live.child]

    def _pairings(self, measurement: Measurement) -> list[Pairing]:
        roles: list[tuple[Role, LiveTrial | None]]
        roles = [("previous", self.previous), ("baseline", self.baseline)]
        return [self._pairing(role, live, measurement) for role, live in roles if live]

    def _pairing(self, role: Role, live: LiveTrial, measurement: Measurement) -> Pairing:
        return measurement.pairing(role, live.run_id, live.rates, noise.load(self.setup.plan.device))

    def _keep(self, live: LiveTrial, schedule: Schedule) -> None:
        """Makes it the next trial's previous one, unless nothing is to be compared with it."""
        if self.baseline is None:
            self.baseline = live
        elif schedule.baseline_only:
            self._stop(live)
            return
        elif self.previous and self.previous is not self.baseline:
            self._stop(self.previous)
        self.previous = live

    def _stop(self, live: LiveTrial) -> None:
        if live.child:
            self.setup.stop(live.child)
        live.child = None


def _require_mechanisms(trained: Trained) -> None:
    off = [f"{proof.switch} ({proof.evidence})" for proof in trained.mechanisms if not proof.ok]
    if off:
        raise RunFailed(
            f"the mechanism is not on: {'; '.join(off)}",
            "The numbers would not be of this recipe, so it is not measured; check the workload's own code",
        )
