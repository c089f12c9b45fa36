"""A job: one piece of work that a panel has under way, and how it ended; an answer: what it leaves."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from perfkit.errors import Cancelled
from perfkit.results import Comparison, Parity, Run, RunStore
from perfkit.studies.compare import Candidate
from perfkit.studies.decisions import plan_key
from perfkit.studies.sources import Plan, Progress, Update

State = Literal["idle", "running", "stopping", "done", "stopped", "failed"]


class Stopped(Cancelled):
    """A job was stopped; `finished` holds the runs that had ended by then."""

    def __init__(self, finished: Sequence[Run] = ()) -> None:
        super().__init__("stopped; what was finished is kept")
        self.finished = finished


@dataclass(frozen=True)
class PlanAnswer:
    """What was measured for a plan. A job makes a new answer, or leaves the old one."""

    plan: Plan
    runs: Sequence[Run] = ()
    notices: tuple[str, ...] = ()  # what went wrong, although the result is valid
    proof: Parity | None = None  # whether its stage trains the same
    sides: tuple[Candidate, Candidate] | None = None  # of a comparison
    comparison: Comparison | None = None

    @property
    def can_continue(self) -> bool:
        """Whether further rounds could decide what it leaves open; a longer ladder builds on its verdicts."""
        ladder = self.plan.ladder
        takes_more = not self.plan.recorded and (ladder.recipes or len(ladder.stages) < 2)
        ratios = [run.speedup(pair.role) for run in self.runs if not run.is_again for pair in run.pairings]
        if self.comparison:
            ratios = [self.comparison.ratio]
        is_open = any(ratio is not None and ratio.verdict == "undecided" for ratio in ratios)
        return bool(takes_more and is_open)


class Job:
    """One piece of work, which is done once: idle, running, perhaps stopping, then how it ended.

    `work` does it: it gets the job, works on its `plan`, a value that nothing changes any more, reports to
    its `progress`, and raises what goes wrong. `changed` is called after each change, with the run that has
    just ended, if any. `before` is the answer that this job continues.
    """

    def __init__(
        self,
        work: Callable[["Job"], object],
        plan: Any = None,
        changed: Callable[["Job", Run | None], object] = lambda job, run: None,
        before: PlanAnswer | None = None,
    ) -> None:
        self.plan = plan
        self.before = before
        self.state: State = "idle"
        self.now = Update("", "starting …", 0.0)
        self.runs: tuple[Run, ...] = ()  # the runs that have ended so far
        self.problem: BaseException | None = None
        self._work = work
        self._changed = changed
        self.ended = threading.Event()  # by a panel together with what it shows of that, else by `run`
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.progress = Progress(self._follow, self._stop)

    def run(self) -> None:
        """Does the work in this thread. Raises what went wrong, and `Stopped` even if `stop` came before."""
        try:
            if self._begins():
                self._end(self._outcome())
        finally:
            self.ended.set()
        if self.problem:
            raise self.problem

    def stop(self) -> None:
        """Asks it to end soon; runs that are finished are kept."""
        self._stop.set()
        with self._lock:
            if self.state == "idle":  # it never begins
                self.state = "stopped"
                self.problem = Stopped()
                self.ended.set()
            elif self.state == "running":
                self.state = "stopping"
            else:
                return
        self._changed(self, None)

    def raise_if_stopped(self) -> None:
        """Raises `Stopped` if it was asked to end: what comes next is for complete work only."""
        if self._stop.is_set():
            raise Stopped(self.runs)

    def _begins(self) -> bool:
        with self._lock:
            if self.state == "idle":
                self.state = "running"
            return self.state == "running"

    def _outcome(self) -> State:
        try:
            self._changed(self, None)
            self._work(self)
            self.raise_if_stopped()
        except Cancelled:
            self.problem = Stopped(self.runs)
            return "stopped"
        except KeyboardInterrupt as problem:
            self.problem = problem
            return "stopped"
        except BaseException as problem:
            self.problem = problem
            return "failed"
        return "done"

    def _end(self, outcome: State) -> None:
        """Reports the end. An error in that does not hide what the work itself raised."""
        with self._lock:
            self.state = outcome
        try:
            self._changed(self, None)
        except Exception as problem:
            self.problem = self.problem or problem

    def _follow(self, now: Update) -> None:
        self.now = replace(now, run=None)
        if now.run:
            self.runs = (*self.runs, now.run)
        self._changed(self, now.run)


def answer_after(before: PlanAnswer, job: Job, runs: Sequence[Run]) -> PlanAnswer:
    """The answer that a job leaves, by the `runs` that its study returned: none if it raised.

    A job that was stopped or failed leaves the answer `before` it, unless every run that has rounds there has
    some now. With the same plan the programs are the same, so what else is known of them still holds.
    """
    has_ended = all(run.status in ("ok", "not_applicable") for run in runs)
    if runs and has_ended and not job.progress.cancelled.is_set():
        return PlanAnswer(job.plan, runs)
    runs = runs or job.runs
    measured = {run.title for run in runs if run.status == "ok"}
    loses_some = any(run.status == "ok" and run.title not in measured for run in before.runs)
    adds_nothing = not runs or list(runs) == list(before.runs)
    if adds_nothing or loses_some:
        return before
    return replace(before, runs=runs) if job.plan == before.plan else PlanAnswer(job.plan, runs)


def remembered(plan: Plan, store: RunStore) -> PlanAnswer:
    """What was measured earlier for a plan, and whether its stage trains the same; no runs if nothing was."""
    runs = store.remembered(plan_key(plan))
    proofs = [store.proof(run.id) for run in runs]
    return PlanAnswer(plan.fixed(), runs, proof=next(filter(None, proofs), None))
