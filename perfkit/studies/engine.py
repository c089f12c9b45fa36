"""Running the stages of a ladder: fresh children, rounds in turn, runs into the store.

Every stage runs in a process of its own. The process of the stage before and that of the baseline stay alive
and idle, and measured blocks alternate among the three in a random order, so that the drift of a noisy
machine cancels within a round.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from msgspec import structs

from perfkit import machine
from perfkit.errors import Cancelled, InvalidValue, PerfkitError, RunFailed
from perfkit.ladder import presets
from perfkit.ladder import stages as ladder
from perfkit.ladder.presets import Sizing
from perfkit.ladder.stages import Stage
from perfkit.process.child import Child
from perfkit.process.lock import device_lock
from perfkit.process.ranks import RankGroup, start_ranks
from perfkit.program.recipe import Recipe
from perfkit.program.rules import Target, applicable
from perfkit.results import noise, stats
from perfkit.results.run import Pairing, Run, slug
from perfkit.results.store import RunStore
from perfkit.studies.plan import Plan, Progress, plan, recipe_diff, script, scripts, spread, target
from perfkit.studies.record import Blank, Measured, Role, Side, judged, pairing, results
from perfkit.worker.messages import (
    Description,
    MeasureBlock,
    MeasureCeiling,
    MeasureCommunication,
    ReadPeak,
    Train,
    Trained,
)  # fmt: skip

__all__ = [
    "Plan", "Progress", "climb", "plan", "recipe_diff", "resolve", "script", "scripts", "spread",
    "stage_diff", "target",
]  # fmt: skip

DATA_BOUND_SHARE = 0.3
"""From this share of waiting on, a CPU's cores are divided between loader workers and compute threads.

With both on the same cores each parallel region waits for a thread that a worker has displaced: on two cores
the compute part of a step was seen to take four times as long."""


def climb(
    plan: Plan,
    store: RunStore | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    cancelled: threading.Event | None = None,
) -> list[Run]:
    """Measures every stage of a plan; each finished stage is in the store before the next one starts.

    A stage that fails does not stop the others: they go on from the last stage that worked.

    Args:
        plan: what to measure.
        store: where runs are kept; None keeps none.
        on_progress: called often, from this thread.
        cancelled: set it from any thread to stop; finished stages are kept.

    Raises:
        PerfkitError: the workload cannot be loaded at all.
        KeyboardInterrupt: after every child has ended.
    """
    experiment = _Experiment(plan, store, on_progress, cancelled or threading.Event())
    try:
        return experiment.run()
    finally:
        experiment.close()


_MEASURED_FROM = 0.4
_ALONG = {"importing torch": 0.05, "building": 0.15, "first step": 0.2, "first steps": 0.25, "warm-up": 0.3}
"""How far along a stage is in each phase, roughly: for the progress bar only."""


class _Experiment:
    def __init__(
        self,
        plan: Plan,
        store: RunStore | None,
        on_progress: Callable[[Progress], None],
        cancelled: threading.Event,
    ) -> None:
        self.plan = plan
        self.store = store
        self.session = secrets.token_hex(4)
        self.runs: list[Run] = []
        self._tell = on_progress
        self._cancelled = cancelled
        self._random = random.Random(plan.seed)
        self._baseline: Side | None = None
        self._previous: Side | None = None
        self.described: Description
        self._spare: Child | None = None
        self._current: Child | RankGroup | None = None
        self._describing = plan.loads()
        self._stage = ""
        self._done = 0
        self._within = 0.0
        self._total = 1

    def run(self) -> list[Run]:
        """All stages, in order, when it is this experiment's turn."""

        def waits() -> None:
            self._tell(Progress("", f"waiting: another run uses {self.plan.device}", 0.0))

        with device_lock(self.plan.device, self._cancelled, waits):
            self.describe()
            for stage in self.stages():
                run = self._stage_run(stage)
                self._keep(run)
                if run.status == "cancelled":
                    break
        return self.runs

    def stages(self) -> Iterator[Stage]:
        """The stages one after the other; each stands on the last one that worked."""
        target, sizes = self.target(), self.sizes()
        if self.plan.recipes:
            first, _ = applicable(self.plan.recipes[0][1], target)
            for title, wanted in self.plan.recipes:
                self._total = len(self.plan.recipes)
                recipe, reasons = applicable(wanted, target)
                # Where nothing is left of what it changes, measuring would show the first one again.
                nothing_left = bool(reasons) and recipe == first and wanted != self.plan.recipes[0][1]
                why = "; ".join(dict.fromkeys(reasons.values())) if nothing_left else ""
                yield Stage(slug(title), title, recipe, reason=why, not_applied=reasons)
            return
        rungs = ladder.rungs(self.plan.stages)[1:]
        self._total = len(rungs) + 1
        stage = self.first_stage(target, sizes)
        yield stage
        good = stage.recipe
        sizes = replace(sizes, share_cores=self._waits_for_data() and target.device == "cpu")
        for rung in rungs:
            if self.runs and self.runs[-1].status == "ok":
                good = stage.recipe
            stage = self.changed(ladder.stage(rung, good, sizes, target), target)
            yield stage

    def changed(self, stage: Stage, target: Target) -> Stage:
        """A stage with the plan's own values for its switches."""
        if stage.reason or not self.plan.changes:
            return stage
        recipe, reasons = applicable(stage.recipe.replace(**self.plan.changes), target)
        return replace(stage, recipe=recipe, not_applied={**(stage.not_applied or {}), **reasons})

    def _waits_for_data(self) -> bool:
        """Whether the first stage waited so long that workers deserve cores which the model would use."""
        return bool(self.runs and (self.runs[0].data_wait_share or 0) > DATA_BOUND_SHARE)

    def first_stage(self, target: Target, sizes: Sizing) -> Stage:
        """What the other stages are compared with: the plain loop, or the ladder below the first of them."""
        below = ladder.below(self.plan.stages[0]) if self.plan.below and self.plan.stages else ()
        stage = ladder.build(below, sizes, target)[-1]
        recipe, reasons = applicable(stage.recipe.replace(**self.plan.settings), target)
        title = "before" if below else "baseline"
        return Stage("baseline", title, recipe, not_applied=reasons)

    def close(self) -> None:
        """Ends every child."""
        for side in self._sides():
            side.stop()
        for child in (self._spare, self._current):
            if child:
                child.stop()

    def _new_child(self) -> Child:
        deadline = time.monotonic() + self.plan.timeout_s if self.plan.timeout_s else None
        child = self._current = Child(self._on_phase, self._cancelled, deadline)
        return child

    def describe(self) -> None:
        """Loads the workload in a child, which the next stage then uses."""
        plan = self.plan
        child = self._new_child()
        if plan.files:
            self._describing = structs.replace(self._describing, workload=plan.files[len(self.runs)])
        self.described = child.ask(self._describing)
        self._spare = child

    def spare(self) -> Child:
        """The child that has loaded the workload; no longer this experiment's to end."""
        assert self._spare is not None
        child, self._spare, self._current = self._spare, None, None
        return child

    def target(self) -> Target:
        """Where the stages are to run."""
        return target(self.plan, self.described)

    def sizes(self) -> Sizing:
        """The numbers of the ladder on this machine."""
        return presets.sizing(self.plan.preset, self.target(), machine.usable_cores())

    def _on_phase(self, phase: str, fraction: float) -> None:
        self._within = max(self._within, _ALONG.get(phase, 0.0))
        self._tell(Progress(self._stage, phase, min(1.0, (self._done + self._within) / self._total)))

    def _keep(self, run: Run) -> None:
        self.runs.append(run)
        if self.store:
            self.store.add(run)
        self._done += 1
        self._tell(Progress(run.title, run.status, self._done / self._total, run))

    def _stage_run(self, stage: Stage) -> Run:
        """One stage, measured, or the reason why not."""
        self._stage, self._within = stage.title, 0.0
        blank = self._blank(stage)
        if stage.reason:
            return blank(status="not_applicable", reason=stage.reason)
        try:
            measured = self._measure(stage.recipe)
        except Cancelled as stopped:
            self._drop_current()
            return blank(status="cancelled", reason=str(stopped))
        except PerfkitError as problem:
            self._drop_current()
            return blank(status="failed", reason=str(problem))
        run = blank(**results(measured, self._pairings(measured), self.plan.device))
        self._settle_sides(run, measured)
        return judged(run, measured)

    def _blank(self, stage: Stage) -> Blank:
        return Blank(
            self.session, stage, self.described, self.plan.preset.name, self.plan.device, self.plan.seed
        )

    def _drop_current(self) -> None:
        if self._current:
            self._current.stop()
        self._current = self._spare = None

    def _measure(self, recipe: Recipe) -> Measured:
        try:
            return self._rounds(recipe)
        except RunFailed as problem:
            if problem.kind != "out of memory" or not self._alive():
                raise
        # The sides may not fit beside each other: alone, then, against what the others measured before.
        self._drop_current()
        for side in self._sides():
            side.stop()
        return self._rounds(recipe)

    def _sides(self) -> list[Side]:
        """The stages to compare with: the previous one and the baseline, which may be the same."""
        return list({side.run_id: side for side in (self._previous, self._baseline) if side}.values())

    def _alive(self) -> list[Side]:
        """Those of them that can be measured in turn."""
        return [side for side in self._sides() if side.child]

    def _rounds(self, recipe: Recipe) -> Measured:
        if self._spare is None:
            self.describe()
        assert self._spare is not None
        child: Child | RankGroup = self._spare
        if recipe.ranks > 1:
            child = self._current = start_ranks(self._spare, self._describing, recipe.ranks, self.plan.nodes)
        self._spare = None
        preset = self.plan.preset
        rounds = 1 if self.plan.rates_only and not self._alive() else preset.rounds
        measured = Measured(
            child.ask(
                Train(
                    recipe=recipe.to_dict(),
                    seed=self.plan.seed,
                    loss_steps=preset.loss_steps,
                    warmup_s=preset.warmup_s,
                    started=child.started,
                )
            )
        )
        _require_mechanisms(measured.ready)
        with machine.sample_utilization(self.described.facts.uuid) as utilization:
            started = time.monotonic()
            for number in itertools.count():
                spent = time.monotonic() - started
                if number >= rounds and (spent > self.plan.budget_s or self._precise(measured)):
                    break
                share = min(1.0, max(number / rounds, spent / (self.plan.budget_s or math.inf)))
                self._within = _MEASURED_FROM + (1 - _MEASURED_FROM) * share
                self._round(child, measured, utilization)
        measured.peak = child.ask(ReadPeak())
        if recipe.ranks > 1:
            measured.communication = child.ask(MeasureCommunication(preset.block_samples))
        return measured

    def _precise(self, measured: Measured) -> bool:
        """Whether the comparison with the previous side is known as well as was asked."""
        if self.plan.precision is None or self._previous is None:
            return True
        found = pairing(self._previous, "previous", measured)
        return stats.narrow_enough(found.ratio, len(measured.blocks), self.plan.precision)

    def _round(self, child: Child | RankGroup, measured: Measured, utilization: list[float]) -> None:
        samples = self.plan.preset.block_samples
        command = MeasureBlock(samples, queues=self.plan.preset.queues)
        order: list[Side | None] = [None, *self._alive()]
        self._random.shuffle(order)
        rates: dict[str, float] = {}
        for side in order:
            if side is None:
                with _sampled(utilization, measured):
                    block = child.ask(command)
                measured.blocks.append(block)
                if not self.plan.rates_only:
                    measured.ceiling.append(child.ask(MeasureCeiling(samples)).samples_per_s)
            elif side.child:
                side.child.deadline = child.deadline
                rates[side.run_id] = side.child.ask(command).samples_per_s
        for run_id, rate in rates.items():
            measured.rounds.setdefault(run_id, []).append((measured.blocks[-1].samples_per_s, rate))

    def _pairings(self, measured: Measured) -> list[Pairing]:
        roles: list[tuple[Role, Side | None]]
        roles = [("previous", self._previous), ("baseline", self._baseline)]
        known = noise.load(self.plan.device)
        return [pairing(side, role, measured, known) for role, side in roles if side]

    def _settle_sides(self, run: Run, measured: Measured) -> None:
        """The stage that has just been measured is the next one's previous, where that is asked for."""
        assert self._current is not None
        side = Side(run.id, self._current, measured.rates)
        self._current = None
        if self._baseline is None:
            self._baseline = side
        elif self.plan.only_first:
            side.stop()
            return
        elif self._previous and self._previous is not self._baseline:
            self._previous.stop()
        self._previous = side


@contextlib.contextmanager
def _sampled(utilization: list[float], measured: Measured) -> Iterator[None]:
    """Keeps NVML's samples of the time inside; ignores those of other sides' blocks."""
    start = len(utilization)
    yield
    measured.gpu_utilization += utilization[start:]


def _require_mechanisms(ready: Trained) -> None:
    off = [f"{m.switch} ({m.evidence})" for m in ready.mechanisms if not m.ok]
    if off:
        raise RunFailed(
            f"the mechanism is not on: {'; '.join(off)}",
            "It would not measure what it says, so it is not measured; check the workload's own code",
        )


def resolve(plan: Plan) -> tuple[Description, list[Stage]]:
    """What the workload and device say of themselves, and the stages as this machine would run them.

    Nothing is trained; a child loads the workload, so that this process stays clean.

    Raises:
        PerfkitError: the workload cannot be loaded.
    """
    described, stages, child = resolve_and_keep(plan)
    child.stop()
    return described, stages


def resolve_and_keep(
    plan: Plan,
    on_progress: Callable[[str, float], None] = lambda phase, fraction: None,
    cancelled: threading.Event | None = None,
) -> tuple[Description, list[Stage], Child]:
    """As `resolve`, with the child that has loaded the workload: for the caller to use, and to stop.

    Args:
        plan: what is asked.
        on_progress: told what the child does, now and later.
        cancelled: set it from any thread to stop.

    Raises:
        PerfkitError: the workload cannot be loaded.
    """
    event = cancelled or threading.Event()
    experiment = _Experiment(plan, None, lambda told: on_progress(told.phase, told.fraction), event)
    try:
        experiment.describe()
        target, sizes = experiment.target(), experiment.sizes()
        stages = [experiment.first_stage(target, sizes)]
        for rung in ladder.rungs(plan.stages)[1:]:
            stage = ladder.stage(rung, stages[-1].recipe, sizes, target)
            stages.append(experiment.changed(stage, target))
        child = experiment.spare()
        return experiment.described, stages, child
    finally:
        experiment.close()


def stage_diff(plan: Plan) -> str:
    """What the last stage of a plan changes in the script.

    Raises:
        InvalidValue: the stage cannot act on this machine.
    """
    described, stages = resolve(plan)
    if stages[-1].reason:
        raise InvalidValue(
            f"stage '{stages[-1].name}' does not apply here: {stages[-1].reason}", "Choose another"
        )
    before = stages[-2].recipe if len(stages) > 1 else stages[-1].recipe
    return recipe_diff(plan, described, before, stages[-1].recipe, stages[-1].name)
