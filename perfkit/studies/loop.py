"""The measuring loop of all studies: stages in, runs out.

Every stage trains in a fresh process. The processes stay alive, and each round measures one block of each, in
random order, so that the drift of a noisy machine cancels within a round and the numbers that are shown
together come from the same rounds. If memory does not hold all processes, stages are measured in batches,
each beside the baseline.
"""

import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from perfkit import machine
from perfkit.errors import Cancelled, PerfkitError, RunFailed
from perfkit.ladder.stages import Stage
from perfkit.results import noise, stats
from perfkit.results.pairing import DISTURBED, Pairing
from perfkit.results.run import AGAIN, Communication, Run
from perfkit.studies.progress import Progress
from perfkit.studies.record import Measurement, Noise, Round, RunBuilder
from perfkit.studies.sources import Plan, StopRule
from perfkit.worker.messages import Block, Description, Peak, Trained

STARTING = 0.25
"""The part of a measurement's time until all processes are warm, roughly: for the progress bar."""
MEMORY_MARGIN = 1.5
"""Another training needs as much memory as the largest so far, and some more for its batches."""


class Process(Protocol):
    """A process that trains one recipe and is warm."""

    trained: Trained

    @property
    def pids(self) -> list[int]:
        """The leaders of its process groups."""

    def block(self, samples: int, seconds: float, queues: int) -> Block:
        """Measures steps."""

    def ceiling(self, samples: int) -> Block:
        """Measures steps on a batch that is already on the device."""

    def peak(self) -> Peak:
        """Peak memory since the warm-up."""

    def communication(self, samples: int) -> Communication:
        """What averaging gradients between ranks costs."""

    def stop(self) -> None:
        """Ends it, and everything that it started."""


@dataclass(eq=False)
class Trial:
    """A stage of a measurement."""

    stage: Stage
    builder: RunBuilder
    process: Process | None = None
    measurement: Measurement | None = None
    failure: PerfkitError | None = None
    gpu_bytes: int = 0
    """What its process takes of the GPU's memory, seen from outside."""

    @property
    def is_open(self) -> bool:
        """Whether it can act here, and has not failed."""
        return not self.stage.reason and self.failure is None

    @property
    def result(self) -> Measurement | None:
        """What it has measured, if that is at least one round and it has not failed."""
        measurement = self.measurement if self.failure is None else None
        return measurement if measurement and measurement.rounds else None

    def warm(self, process: Process) -> None:
        """Has a process from now on; rounds of an earlier one stay."""
        self.process = process
        if self.measurement:
            self.measurement.trained = process.trained
        else:
            self.measurement = Measurement(self.builder.id, process.trained)

    def stop(self) -> None:
        """Ends its process."""
        if self.process:
            self.process.stop()
        self.process = None

    def fail(self, problem: PerfkitError) -> None:
        """Takes no further part, and has a run that says why."""
        self.failure = problem
        self.stop()

    def forget(self) -> None:
        """Ends its process; it is to be measured anew."""
        self.stop()
        self.measurement = None


class Loop:
    """Measures stages; processes stay alive from one call of `measure` to the next.

    Args:
        plan: preset, seed, device.
        description: of the workload and the device.
        progress: follows and stops it.
        start: starts a stage's process, and returns once it is warm.
        device_noise: the A/A noise that verdicts take into account.
        holds_batches: whether a step on a held batch can be measured.
    """

    def __init__(
        self,
        plan: Plan,
        description: Description,
        progress: Progress,
        start: Callable[[Stage], Process],
        device_noise: Callable[[], Noise],
        holds_batches: bool = True,
    ) -> None:
        self.stopped: BaseException | None = None
        self._plan = plan
        self._description = description
        self._progress = progress
        self._start = start
        self._noise = device_noise
        self._holds_batches = holds_batches
        self._session = secrets.token_hex(4)
        self._random = random.Random(plan.seed)
        self._trials: dict[str, Trial] = {}
        self._reference: float | None = None
        """The rate of the baseline, in samples/s, when it was measured first."""

    def measure(  # noqa: C901, PLR0912 - the one measuring loop, read from top to bottom
        self, stages: Sequence[Stage], stop: StopRule
    ) -> list[Run]:
        """See `Source.measure`."""
        trials = [self._trial(stage, is_base=stage is stages[0]) for stage in stages]
        waiting = [trial for trial in trials if trial.is_open]
        for trial in self._trials.values():
            if waiting and trial not in trials:
                trial.stop()
        alone: list[Trial] = []
        most = len(waiting)
        while waiting and not self.stopped:
            base = waiting[0]
            batch = self._start_together(waiting, most)
            waiting = [trial for trial in waiting if trial.is_open and trial not in batch]
            if batch == [base] and waiting:
                alone.append(waiting.pop(0))  # memory does not hold it even beside the baseline
            lacking = self._take_rounds(batch, stop) if batch != [base] or not base.result else []
            if len(batch) > 2:
                waiting = lacking + waiting
            else:
                alone += lacking
            if lacking:
                most = 2
            if waiting:
                for trial in batch:
                    if trial is not base:
                        trial.stop()
            if base.is_open and (waiting or not base.result):
                waiting.insert(0, base)
        for trial in alone:
            if not self.stopped:
                self.renew()
                self._take_rounds(self._start_together([trial], 1), stop)
        base = next((trial for trial in trials if trial.result), trials[0])
        self._learn_noise(trials, base)
        return [self._run(trial, trials[:at], base) for at, trial in enumerate(trials)]

    def renew(self) -> None:
        """Ends every process."""
        for trial in self._trials.values():
            trial.stop()

    def _trial(self, stage: Stage, is_base: bool) -> Trial:
        """The trial of an earlier call, if its process is alive or it is the baseline; else a new one."""
        known = self._trials.get(stage.name)
        if known and known.stage == stage and known.is_open and (known.process or is_base):
            return known
        if known:
            known.stop()
        builder = RunBuilder(self._session, stage, self._plan, self._description)
        self._trials[stage.name] = trial = Trial(stage, builder)
        return trial

    # ------------------------------------------------------------ starting

    def _start_together(self, trials: Sequence[Trial], most: int) -> list[Trial]:
        """Starts processes in the order of the trials, as many as memory holds, and returns these trials."""
        batch: list[Trial] = []
        base, is_fresh = trials[0], trials[0].process is None
        for trial in trials:
            full = len(batch) >= most or (len(batch) > 1 and not trial.process and self._is_crowded(batch))
            if batch and full:
                break
            self._progress.reach(STARTING * len(batch) / len(trials), trial.stage.title)
            try:
                if not trial.process:
                    free = self._free_gpu_bytes()
                    trial.warm(self._checked_process(trial.stage))
                    trial.gpu_bytes = max(0, free - self._free_gpu_bytes())
            except (Cancelled, KeyboardInterrupt) as stop:
                self.stopped = stop
                break
            except PerfkitError as problem:
                if _is_out_of_memory(problem) and batch:
                    break
                trial.fail(problem)
                continue
            batch.append(trial)
        again = next((trial for trial in batch if trial.stage.name == AGAIN), None)
        if again and is_fresh and base in batch and self._random.random() < 0.5:
            _exchange(again, base)
        return batch

    def _is_crowded(self, batch: Sequence[Trial]) -> bool:
        """Whether one more training may not fit into the memory of this machine or of its GPU."""
        resident = [sum(map(machine.resident_bytes, _pids([trial]))) for trial in batch]
        if machine.free_memory_bytes() < MEMORY_MARGIN * max(resident):
            return True
        return self._free_gpu_bytes() < MEMORY_MARGIN * max(trial.gpu_bytes for trial in batch)

    def _free_gpu_bytes(self) -> int:
        """0 if no GPU takes part."""
        return machine.free_gpu_bytes(self._description.facts.uuid) or 0

    def _checked_process(self, stage: Stage) -> Process:
        process = self._start(stage)
        off = [f"{proof.switch} ({proof.evidence})" for proof in process.trained.mechanisms if not proof.ok]
        if off:
            process.stop()
            raise RunFailed(
                f"the mechanism is not on: {'; '.join(off)}",
                "The numbers would not be of this recipe, so it is not measured; check the workload's code",
            )
        return process

    # ------------------------------------------------------------ rounds

    def _take_rounds(self, batch: Sequence[Trial], stop: StopRule) -> list[Trial]:
        """Measures rounds until the rule is satisfied.

        A trial that fails takes no further part. A person who stops it keeps the complete rounds.

        Returns:
            Trials that ran out of memory beside the others, and are to be measured anew.
        """
        members, rounds, lacking = list(batch), list[Round](), list[Trial]()
        clock = _Clock(stop, len(batch))
        others = machine.OtherPrograms()
        with machine.sample_utilization(self._description.facts.uuid) as utilization:
            while members and not self.stopped:
                needed = self._rounds_needed(members, rounds, stop)
                share = clock.share(rounds, needed)
                if share >= 1.0:
                    break
                self._progress.reach(STARTING + (1 - STARTING) * share, _title(len(rounds) + 1, members))
                try:
                    round = self._take_round(members, lacking, stop, utilization)
                except (Cancelled, KeyboardInterrupt) as person:
                    self.stopped = person
                    break
                for trial in members:
                    if trial.measurement:
                        trial.measurement.rounds.append(round)
                rounds.append(round)
                others.look()
            disturber = others.busiest(_pids(members)) if any(map(_is_disturbed, rounds)) else None
        for trial in list(members):
            trial.builder.disturber = disturber
            self._ask_the_rest(trial)
        return lacking

    def _take_round(
        self,
        members: list[Trial],
        lacking: list[Trial],
        stop: StopRule,
        utilization: list[float],
    ) -> Round:
        """One block of every member, in random order; a member without memory moves to those that lack it."""
        started, base = time.monotonic(), members[0]
        blocks: dict[str, Block] = {}
        ceilings: dict[str, Block] = {}
        disturbed = 0.0
        for trial in self._random.sample(members, len(members)):
            start = len(utilization)  # what was sampled before belongs to other trials
            if not (trial.process and trial.measurement):
                continue
            is_new = len(trial.measurement.rounds) < stop.rounds
            wants_ceiling = stop.ceiling and self._holds_batches and is_new
            try:
                self._progress.measure(trial.stage.title, disturbed if blocks else None, utilization)
                block, ceiling, share = self._take_block(trial.process, members, wants_ceiling)
            except Cancelled:
                raise
            except PerfkitError as problem:
                if not _is_out_of_memory(problem) or len(members) == 1:
                    trial.fail(problem)
                    members.remove(trial)
                    continue
                crowd = [trial] if trial is not base else members[1:]
                trial.stop()
                for other in crowd:
                    other.forget()
                    lacking.append(other)
                members[:] = [other for other in members if other not in crowd and other.process]
                continue
            trial.measurement.gpu_utilization += utilization[start:]
            disturbed, blocks[trial.builder.id] = max(disturbed, share), block
            if ceiling:
                ceilings[trial.builder.id] = ceiling
        return Round(blocks, ceilings, disturbed, time.monotonic() - started)

    def _take_block(
        self, process: Process, members: Sequence[Trial], wants_ceiling: bool
    ) -> tuple[Block, Block | None, float]:
        """A block, the ceiling, and the share of the cores or of the GPU that others took meanwhile."""
        preset, pids = self._plan.preset, _pids(members)
        since, before = time.time(), machine.cpu_times(pids)
        block = process.block(preset.block_samples, preset.block_s, preset.queues)
        ceiling = process.ceiling(preset.block_samples) if wants_ceiling else None
        share = machine.taken_share(before, machine.cpu_times(pids))
        if uuid := self._description.facts.uuid:
            share = max(share, machine.taken_gpu_share(uuid, since, machine.members(pids)))
        return block, ceiling, share

    def _rounds_needed(self, members: Sequence[Trial], rounds: Sequence[Round], stop: StopRule) -> float:
        """After how many undisturbed rounds the ratios to the stage before and the baseline are precise."""
        clean = [round for round in rounds if not _is_disturbed(round)]
        again = members[-1].stage.name == AGAIN
        compared = members[:-1] if again else members
        if stop.precision is None or len(compared) < 2:
            return stop.rounds
        rates = [[round.blocks[trial.builder.id].samples_per_s for trial in members] for round in clean]
        logs = np.log(np.array(rates).reshape(len(clean), len(members)))
        precision = stop.precision
        if stop.adds_noise:
            pair = np.exp(logs[:, -1]), np.exp(logs[:, 0])
            known = [stats.aa_pair(*pair)] if again and len(clean) > 1 else []
            precision = stats.rounds_part(precision, noise.load(self._plan.device, known))
        equal = logs[:, -1:] - logs[:, :1] if again else None
        logs = logs[:, : len(compared)]
        ratios = np.hstack([logs[:, 1:] - logs[:, :-1], logs[:, 2:] - logs[:, :1]])
        return max(stop.rounds, stats.rounds_needed(ratios, precision, stop.part, equal))

    def _ask_the_rest(self, trial: Trial) -> None:
        """What is measured once, after the rounds."""
        if self.stopped or not (trial.process and trial.measurement):
            return
        try:
            trial.measurement.peak = trial.process.peak()
            if trial.stage.recipe.ranks > 1:
                samples = self._plan.preset.block_samples
                trial.measurement.communication = trial.process.communication(samples)
        except (Cancelled, KeyboardInterrupt) as stop:
            self.stopped = stop
        except PerfkitError as problem:
            trial.fail(problem)

    # ------------------------------------------------------------ results

    def _learn_noise(self, trials: Sequence[Trial], base: Trial) -> None:
        """Keeps how far the baseline differs from itself."""
        again = next((trial.result for trial in trials if trial.stage.name == AGAIN), None)
        if again and base.result:
            pairing = again.pairing("baseline", base.result, base.result, (None, False))
            if pairing.interleaved and not pairing.is_disturbed and len(pairing.rates[0]) >= stats.MIN_ROUNDS:
                noise.add(self._plan.device, [stats.aa_pair(*pairing.rates)])

    def _run(self, trial: Trial, before: Sequence[Trial], base: Trial) -> Run:
        if trial.stage.reason:
            return trial.builder.unmeasured("not_applicable", trial.stage.reason)
        if trial.failure:
            return trial.builder.unmeasured("failed", str(trial.failure))
        result, baseline = trial.result, base.result
        if not (result and baseline):
            warm = trial.measurement.trained.warm if trial.measurement else None
            rate = f"; its warm-up ran at {warm.samples_per_s:.3g} samples/s" if warm and warm.samples else ""
            return trial.builder.unmeasured("cancelled", f"stopped before its first round{rate}")
        if trial is base:
            run = trial.builder.measured(result, [])
            self._reference = self._reference or (run.samples_per_s.value if run.samples_per_s else None)
            return run
        pairings: list[Pairing] = []
        known = self._noise()
        previous = next((other.result for other in reversed(before) if other.result), None)
        if previous and trial.stage.name != AGAIN:
            pairings.append(result.pairing("previous", previous, baseline, known))
        pairings.append(result.pairing("baseline", baseline, baseline, known))
        return trial.builder.measured(result, pairings, self._reference)


class _Clock:
    """How much of the rounds is done, by the time and by their number."""

    def __init__(self, stop: StopRule, members: int) -> None:
        self._stop = stop
        self._started = time.monotonic()
        self._budget_s = min(stop.limit_s, stop.budget_s * max(1, members - 1))
        self._share = 0.0

    def share(self, rounds: Sequence[Round], needed: float) -> float:
        """From 0 to 1: all is done."""
        spent_s, least, count = time.monotonic() - self._started, self._stop.rounds, len(rounds)
        clean = sum(not _is_disturbed(round) for round in rounds)
        if count >= least and (spent_s > self._budget_s or clean >= needed):
            return 1.0
        in_time = spent_s / self._budget_s if spent_s < self._budget_s else count / least
        self._share = max(self._share, min(0.99, max(clean / needed, in_time)))
        return self._share


def _title(number: int, members: Sequence[Trial]) -> str:
    together = f", {len(members)} runs together" if len(members) > 2 else f" of {members[-1].stage.title}"
    return f"round {number}{together}"


def _is_disturbed(round: Round) -> bool:
    return round.disturbed > DISTURBED


def _is_out_of_memory(problem: PerfkitError) -> bool:
    return isinstance(problem, RunFailed) and problem.kind == "out of memory"


def _pids(trials: Sequence[Trial]) -> set[int]:
    return {pid for trial in trials if trial.process for pid in trial.process.pids}


def _exchange(one: Trial, other: Trial) -> None:
    """Swaps the processes of two equal trials: of equal processes the one started first may be slower."""
    one.process, other.process = other.process, one.process
    for trial in (one, other):
        if trial.process and trial.measurement:
            trial.measurement.trained = trial.process.trained
