"""The engine of all studies: trials in, runs out.

Every trial runs in a fresh process. Several trials are started, stay alive, and are measured together: each
round measures one block of each, in random order, so that the drift of a noisy machine cancels within a round
and every number shown comes from the same rounds. As many as fit in memory make up such a heat; the baseline
takes part in all of them.
"""

from __future__ import annotations

import math
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from perfkit.errors import Cancelled, PerfkitError, RunFailed
from perfkit.ladder.presets import Preset
from perfkit.ladder.stages import AGAIN, Stage
from perfkit.results import noise, stats
from perfkit.results.pairing import Role
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.scripts.launch import Launch
from perfkit.studies.heat import Heat, Live
from perfkit.studies.plan import Plan
from perfkit.studies.record import Measurement, RunBuilder
from perfkit.studies.setup import Setup
from perfkit.worker.messages import Trained


@dataclass(frozen=True)
class Schedule:
    """How long trials are measured, and beside how many others."""

    preset: Preset
    """Its rounds are the least number."""
    together: int | None = None
    """Trials started for a heat; None: as many as fit in memory. The baseline takes part in every heat."""
    again: bool = False
    """Whether a heat ends with the baseline once more, in a process of its own: the A/A row."""
    ceiling: bool = True
    """Whether the first rounds also measure the step on a batch that is already on the device."""
    precision: float | None = None
    """Further rounds, until half the width of every interval / ratio is at most this …"""
    part: float = 0.0
    """… or this part of the effect, if that is more …"""
    adds_noise: bool = False
    """Whether that width also holds the A/A noise: what is known of it, and the A/A row as it is so far."""
    budget_s: float = 0.0
    """… or until this many seconds of rounds are spent for each trial."""
    limit_s: float = math.inf
    """No further round starts this long after the study, but for the least number."""


def has_verdicts(preset: Preset) -> bool:
    """Whether its least number of rounds is enough for verdicts, which the A/A row is then measured for."""
    return preset.rounds >= stats.MIN_ROUNDS


def schedule_of(plan: Plan) -> Schedule:
    """What a plan's preset asks for: all together, with an A/A row where there can be verdicts."""
    preset, verdicts = plan.preset, has_verdicts(plan.preset)
    return Schedule(
        preset,
        again=verdicts and not plan.gpu,
        precision=preset.precision if verdicts else None,
        part=preset.part,
        adds_noise=True,
        budget_s=preset.budget_s,
        limit_s=preset.limit_s,
    )


@dataclass(frozen=True)
class Trial:
    """One recipe to measure."""

    stage: Stage
    total: int
    """Trials that the study is to have, as far as is known: for the progress bar."""
    workload: str | Launch | None = None
    """Another one than the plan's: an exported script, or a user's that is watched."""


def measure(
    trials: Iterable[Trial],
    setup: Setup,
    schedule: Schedule,
    store: RunStore | None = None,
    on_failure: Callable[[Stage], None] = lambda stage: None,
) -> Iterator[Run]:
    """Measures trials in heats; the first trial is the baseline of all the others.

    The runs of a heat are stored and yielded, in the order of the trials, before the next trial is drawn:
    with `together=1`, a generator of trials can decide by each result what comes next, and when to stop. A
    trial that fails does not stop the others. When a person stops it, trials keep the rounds they have.

    Args:
        trials: drawn when there is room for them.
        setup: whose workload is trained.
        schedule: how long.
        store: where runs are kept; None keeps none.
        on_failure: called with a stage that cannot be measured, before the next trial is drawn.

    Raises:
        KeyboardInterrupt: after what was measured has been yielded.
    """
    session = _Session(setup, schedule, on_failure)

    def finished() -> Iterator[Run]:
        for run in session.finish():
            if store:
                store.add(run)
            setup.progress.finish(run)
            yield run

    try:
        for trial in session.with_again(trials):
            if not session.start(trial):
                # No memory beside the others: their heat ends first, then this trial gets their place.
                yield from finished()
                if not session.stopped:
                    session.start(trial)
            if not session.stopped and session.is_full():
                yield from finished()
            if session.stopped:
                break
        yield from finished()
    finally:
        session.close()
    if isinstance(session.stopped, KeyboardInterrupt):
        raise session.stopped


@dataclass
class _Session:
    """The trials of one study, and the processes that stay alive between them."""

    setup: Setup
    schedule: Schedule
    on_failure: Callable[[Stage], None]
    id: str = field(default_factory=lambda: secrets.token_hex(4))
    stopped: Cancelled | KeyboardInterrupt | None = None
    """How a person has stopped it."""
    baseline: Live | None = None
    previous: Live | None = None
    """The last trial that was measured."""
    waiting: list[Live] = field(default_factory=list)
    """The trials of this heat in their order, those among them that could not be started included."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.setup.plan.seed)
        self._until = time.monotonic() + self.schedule.limit_s
        self._left = 1
        self._compared = False

    def with_again(self, trials: Iterable[Trial]) -> Iterator[Trial]:
        """The trials, then the baseline once more, if there is something to compare."""
        for number, trial in enumerate(trials):
            self._left = max(1, trial.total - number)
            yield trial
        if self.schedule.again and self.baseline and self._compared:
            first = self.baseline.trial
            stage = replace(first.stage, name=AGAIN, title=f"{first.stage.title} (again)", not_applied=None)
            yield replace(first, stage=stage)

    def is_full(self) -> bool:
        """Whether the heat is to be measured before another trial is drawn."""
        alive, together = [live for live in self.waiting if live.child], self.schedule.together
        return len(alive) >= together if together else bool(alive) and self._heat().is_crowded()

    def start(self, trial: Trial) -> bool:
        """Starts a trial, or notes why it cannot be measured; False if it lacks memory beside its heat."""
        setup, stage = self.setup, trial.stage
        setup.progress.start(stage.title, trial.total + self.schedule.again)
        live = Live(trial, RunBuilder(self.id, stage, setup.plan, setup.description))
        try:
            if stage.reason:
                live.run = live.builder.unmeasured("not_applicable", stage.reason)
            else:
                self._train(live)
        except (Cancelled, KeyboardInterrupt) as stop:
            live.run, self.stopped = live.builder.unmeasured("cancelled", "stopped on request"), stop
        except PerfkitError as problem:
            if isinstance(problem, RunFailed) and problem.kind == "out of memory" and self._alive():
                if self._alive() != [self.baseline] or self.waiting:
                    return False
                self.close()  # not even beside the baseline: alone, against what that has measured
                return self.start(trial)
            live.run = live.builder.unmeasured("failed", str(problem))
        if live.run:
            self.on_failure(stage)
        elif self.baseline is None:
            self.baseline = live
        else:
            self._compared = True
        self.waiting.append(live)
        setup.progress.started()
        return True

    def _train(self, live: Live) -> None:
        setup, trial, preset = self.setup, live.trial, self.schedule.preset
        recipe = trial.stage.recipe
        live.child, trained = setup.train(
            recipe, preset.loss_steps, preset.warmup_s, child=setup.child(trial.workload, recipe)
        )
        live.measurement = Measurement(live.id, trained)
        try:
            _require_mechanisms(trained)
        except RunFailed:
            live.stop(setup)
            raise

    def finish(self) -> list[Run]:
        """Measures the heat and ends its processes; its runs in the order of the trials."""
        members = [live for live in self.waiting if live.is_measurable]
        if members and not self.stopped:
            again = members[-1]
            if again.stage.name == AGAIN and members[0] is self.baseline and self._random.random() < 0.5:
                again.exchange(members[0])  # of two equal processes, the one started first may be slower
            try:
                self._heat().measure()
            except (Cancelled, KeyboardInterrupt) as stop:
                self.stopped = stop
        self._learn_noise()
        plan = self.setup.plan
        known = noise.expected(plan.device, script=plan.launch is not None)
        for live in self.waiting:
            live.run = live.run or self._run(live, known)
            if live.run.status == "ok" and live.stage.name != AGAIN:
                self.previous = live
            if live is not self.baseline:
                live.stop(self.setup)
        runs, self.waiting = [live.run for live in self.waiting if live.run], []
        return runs

    def _heat(self) -> Heat:
        """Everything that is alive, and the part of the study's time that it may take."""
        members, now = self._alive(), time.monotonic()
        share = len(members) / (len(members) + self._left - 1)
        return Heat(self.setup, self.schedule, members, self._random, now + share * (self._until - now))

    def _learn_noise(self) -> None:
        """Keeps how far the baseline differs from itself."""
        again = next((live for live in self.waiting if live.stage.name == AGAIN and live.is_measurable), None)
        if again and self.baseline and self.baseline.measurement:
            pairing = again.measured.pairing("baseline", self.baseline.measured, None, None)
            if pairing.interleaved and not pairing.is_disturbed and len(pairing.rates[0]) >= stats.MIN_ROUNDS:
                noise.add(self.setup.plan.device, [stats.aa_pair(*pairing.rates)])

    def _run(self, live: Live, known: tuple[float | None, bool]) -> Run:
        """The run of a trial that was started; `known` is this device's A/A noise, `noise.expected`."""
        if not live.measured.rounds:
            warm = live.measured.trained.warm
            about = f"; its warm-up ran at {warm.samples_per_s:.3g} samples/s" if warm.samples else ""
            return live.builder.unmeasured("cancelled", f"stopped before its first round{about}")
        base = self.baseline
        if base is None or base is live or base.measurement is None:
            return live.builder.measured(live.measured, [])
        previous = None if live.stage.name == AGAIN else self.previous
        roles: list[tuple[Role, Live | None]] = [("previous", previous), ("baseline", base)]
        pairings = [
            live.measured.pairing(role, other.measured, base.measured, *known)
            for role, other in roles
            if other
        ]
        rate = base.run.samples_per_s if base.run else None
        return live.builder.measured(live.measured, pairings, rate.value if rate else None)

    def _alive(self) -> list[Live]:
        members = dict.fromkeys([*([self.baseline] if self.baseline else []), *self.waiting])
        return [live for live in members if live.child]

    def close(self) -> None:
        """Ends every process."""
        for live in self._alive():
            live.stop(self.setup)


def _require_mechanisms(trained: Trained) -> None:
    off = [f"{proof.switch} ({proof.evidence})" for proof in trained.mechanisms if not proof.ok]
    if off:
        raise RunFailed(
            f"the mechanism is not on: {'; '.join(off)}",
            "The numbers would not be of this recipe, so it is not measured; check the workload's own code",
        )
