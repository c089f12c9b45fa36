"""A workload that is loaded and ready to be trained: its children, its device, its progress."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Self, Unpack

from perfkit import machine
from perfkit.errors import InvalidValue
from perfkit.ladder import presets
from perfkit.ladder.presets import Sizing
from perfkit.process.child import Child
from perfkit.process.lock import device_lock
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.rules import Target
from perfkit.scripts.launch import Launch
from perfkit.studies.plan import Pace, Plan, Progress, Watch, target
from perfkit.worker.messages import Description, Trained

_STARTING = 0.2
"""The part of a trial's time that passes until it is warm, roughly: for the progress bar only."""
_PHASES = {"importing torch": 0.1, "building": 0.3, "first step": 0.5, "first steps": 0.6, "warm-up": 0.7}
"""How far a trial's start has come in each phase, roughly."""


class Tracker:
    """Turns the phases of children and the trials of a study into the progress of the whole study."""

    def __init__(self, tell: Callable[[Progress], None]) -> None:
        self._tell = tell
        self._title = ""
        self.finished = 0
        """Trials that have ended."""
        self._total = 1
        self._started = 0
        self._within = 0.0
        self._measured = 0.0
        self._pace: Pace | None = None
        self._trial = ""
        self._others: float | None = None
        self._gpu: Sequence[float] = ()

    def start(self, title: str, total: int) -> None:
        """A trial starts; the study is to have `total`, as far as is known."""
        self._title, self._total, self._within, self._trial = title, total, 0.0, title

    def started(self) -> None:
        """The trial is warm, or it cannot be measured."""
        self._started, self._within = self._started + 1, 0.0

    def rounds(self, title: str, share: float) -> None:
        """This share of the rounds is done, which all trials that are warm have in common."""
        self._title = title
        self._measured = self.finished + min(1.0, share) * (self._started - self.finished)

    def block(self, title: str, others: float | None, gpu: Sequence[float]) -> None:
        """The next block is of this trial.

        Args:
            title: the trial's.
            others: share of the cores that other programs took in the block before.
            gpu: samples of the GPU's utilisation in percent, a list that grows.
        """
        self._trial, self._others, self._gpu = title, others, gpu

    def steps(self, step_s: float, samples_per_step: int) -> None:
        """Steps have ended; called by the child."""
        gpu = self._gpu[-1] / 100 if self._gpu else None
        self._pace = Pace(self._trial, step_s, samples_per_step, self._others, gpu)

    def phase(self, phase: str, fraction: float = 0.0) -> None:
        """A child is in a phase; called by the child."""
        self._within = max(self._within, _PHASES.get(phase, 0.0))
        pace, self._pace = self._pace, None
        self._tell(Progress(self._title, phase, self._fraction(), pace=pace))

    def finish(self, run: Run) -> None:
        """A trial has ended."""
        self.finished += 1
        self._tell(Progress(run.title, run.status, self._fraction(), run))

    def _fraction(self) -> float:
        starting = max(self._started + self._within, self.finished)
        done = _STARTING * starting + (1 - _STARTING) * max(self.finished, self._measured)
        return min(1.0, done / self._total)


class Setup:
    """A workload, loaded in a child that the first trial uses. Entering loads it; leaving ends every child.

    Args:
        plan: workload, preset, device, seed.
        watch: `on_progress` and `cancelled`.

    Raises:
        PerfkitError: the workload cannot be loaded, or the plan is of a recording.
    """

    description: Description
    """What the workload and the device report."""
    holds_batches = True
    """Whether a step on a batch that is held can be measured."""

    def __init__(self, plan: Plan, **watch: Unpack[Watch]) -> None:
        if plan.recorded:
            raise InvalidValue(
                f"'{plan.recorded}' is a recording: it is played, and nothing can be measured on it",
                "perfkit run, perfkit show and the panels play it; for this, choose another device",
            )
        self.plan = plan
        self.progress = Tracker(watch.get("on_progress", lambda progress: None))
        self.cancelled = watch.get("cancelled") or threading.Event()
        self._spare: Child | None = None
        self._alive: list[Child] = []

    def __enter__(self) -> Self:
        try:
            self._spare, self.description = self._load(self.plan.workload)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in list(self._alive):
            self.stop(child)

    @property
    def target(self) -> Target:
        """Where the trials are to run."""
        return target(self.plan, self.description)

    @property
    def sizes(self) -> Sizing:
        """The numbers of the ladder on this machine."""
        return presets.sizing(self.plan.preset, self.target, machine.usable_cores())

    def exclusive(self) -> AbstractContextManager[None]:
        """Holds the device; waits while another run uses it."""
        waits = functools.partial(self.progress.phase, f"waiting: another run uses {self.plan.device}")
        return device_lock(self.plan.device, self.cancelled, waits)

    def child(self, workload: str | Launch | None = None, recipe: Recipe | None = None) -> Child:
        """A fresh child that has loaded the plan's workload, or another one; `stop` ends it.

        Args:
            workload: another one than the plan's.
            recipe: that it is to train; only a script must know that at its start.
        """
        assert not isinstance(workload, Launch)
        ranks, environment = (recipe.ranks, recipe.environment()) if recipe else (1, {})
        if self._spare and workload in (None, self.plan.workload) and ranks == 1 and not environment:
            spare, self._spare = self._spare, None
            return spare
        return self._load(workload or self.plan.workload, ranks, environment)[0]

    def train(
        self, recipe: Recipe, loss_steps: int, warmup_s: float = 0.0, batch_times: str = "",
        child: Child | None = None,
    ) -> tuple[Child, Trained]:  # fmt: skip
        """A training that is built, checked and warm: in one child, or in one for each rank.

        Args:
            recipe: what is trained; it must be able to act here.
            loss_steps: first steps, whose losses are kept.
            warmup_s: the most that the warm-up may take.
            batch_times: a folder for the times of the loader's batches.
            child: of this setup; a fresh one if None.

        Raises:
            PerfkitError: the training failed; the child has ended.
        """
        training = child or self.child(recipe=recipe)
        try:
            trained = training.ask(
                "train", Trained, recipe=recipe.to_dict(), seed=self.plan.seed, loss_steps=loss_steps,
                warmup_s=warmup_s, batch_times=batch_times,
            )  # fmt: skip
        except BaseException:
            self.stop(training)
            raise
        return training, trained

    def stop(self, child: Child) -> None:
        """Ends a child and everything that it started."""
        if child in self._alive:
            self._alive.remove(child)
            child.stop()

    def _load(
        self, workload: str, ranks: int = 1, environment: Mapping[str, str] | None = None
    ) -> tuple[Child, Description]:
        plan = self.plan
        deadline = time.monotonic() + plan.timeout_s if plan.timeout_s else None
        child = Child(self.progress.phase, self.cancelled, deadline, ranks=ranks, environment=environment)
        self._alive.append(child)
        child.on_steps = self.progress.steps
        try:
            return child, child.ask(
                "describe", Description, workload=workload, preset=plan.preset.name,
                options=dict(plan.options), device=plan.device,
            )  # fmt: skip
        except BaseException:
            self.stop(child)
            raise


@contextlib.contextmanager
def prepare(plan: Plan, **watch: Unpack[Watch]) -> Iterator[Setup]:
    """A setup that has the device to itself, from before the workload is loaded; arguments as for `Setup`.

    Raises:
        Cancelled: `cancelled` was set while another run held the device.
        PerfkitError: the workload cannot be loaded.
    """
    from perfkit.scripts.study import ScriptSetup

    setup = ScriptSetup(plan, **watch) if plan.launch else Setup(plan, **watch)
    with setup.exclusive(), setup:
        yield setup
