"""The measuring loop of all studies: stages in, runs out.

Every stage trains in a fresh process. The processes stay alive, and each round measures one block of each, in
random order, so that the drift of a noisy machine cancels within a round and the numbers that are shown
together come from the same rounds. What memory does not hold beside all others is measured beside the
baseline alone.
"""

import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from perfkit import machine
from perfkit.errors import Cancelled, PerfkitError, RunFailed
from perfkit.ladder.catalogue import Stage
from perfkit.process.conversation import Conversation
from perfkit.results import noise, stats
from perfkit.results.pairing import DISTURBED, Pairing
from perfkit.results.run import AGAIN, Communication, Run
from perfkit.studies.record import Measurement, Round, RunBuilder
from perfkit.studies.sources import Source, StopRule
from perfkit.worker.messages import Block, Peak, Trained

A = TypeVar("A")

STARTING = 0.25
"""The part of a measurement's time until all processes are warm, roughly: for the progress bar."""
MEMORY_MARGIN = 1.5
"""Another training needs as much memory as the largest so far, and some more for its batches."""


@dataclass
class Training:
    """A process that trains a recipe and is warm; with several ranks, a process for each."""

    child: Conversation
    trained: Trained
    timeout_s: float | None = None
    """Time limit of each question."""

    def ask(self, question: str, kind: type[A], **arguments: Any) -> A:
        """The answer to a question; a `PerfkitError` if the training failed or took too long."""
        if self.timeout_s:
            self.child.deadline = time.monotonic() + self.timeout_s
        return self.child.ask(question, kind, **arguments)


@dataclass(eq=False, kw_only=True)
class Trial(Measurement):
    """A stage of a measurement."""

    stage: Stage
    builder: RunBuilder
    training: Training | None = None
    failure: PerfkitError | None = None
    gpu_bytes: int = 0
    """What its process takes of the GPU's memory, seen from outside."""

    @property
    def is_open(self) -> bool:
        return not self.stage.reason and self.failure is None

    @property
    def has_result(self) -> bool:
        return self.is_open and bool(self.rounds)

    def stop(self) -> None:
        if self.training:
            self.training.child.stop()
        self.training = None


class Loop:
    """Measures stages for a source; processes stay alive from one call of `measure` to the next.

    `start` starts a stage's process and returns once it is warm; `holds_batches`: a step on a held batch can
    be measured. `source.stopped` is how a person has stopped it.
    """

    def __init__(self, source: Source, start: Callable[[Stage], Training], holds_batches: bool) -> None:
        self._source = source
        self._plan = source.plan
        self._gpu = source.description.facts.uuid
        self._start = start
        self._holds_batches = holds_batches
        self._session = secrets.token_hex(4)
        self._random = random.Random(source.plan.seed)
        self._trials: dict[str, Trial] = {}
        self._reference: float | None = None
        """The rate of the baseline, in samples/s, when it was measured first."""

    def measure(self, stages: Sequence[Stage], stop: StopRule) -> list[Run]:
        trials = [self._trial(stage, is_base=stage is stages[0]) for stage in stages]
        groups = [trials]
        while groups and not self._source.stopped:
            group = [trial for trial in groups.pop(0) if trial.is_open]
            if not group or (len(group) == 1 and group[0].has_result):
                continue
            for other in self._trials.values():
                if other not in group:
                    other.stop()
            base = group[0]
            self._take_rounds(self._start_together(group), stop)
            # What memory did not hold has no result: first beside the baseline, then alone.
            lacking = [trial for trial in group if trial.is_open and not trial.rounds]
            if len(group) > 2:
                groups += [[base, trial] for trial in lacking if trial is not base]
            else:
                groups += [[trial] for trial in lacking]
        base = next((trial for trial in trials if trial.has_result), trials[0])
        self._learn_noise(trials, base)
        return [self._run(trial, trials[:at], base) for at, trial in enumerate(trials)]

    def renew(self) -> None:
        for trial in self._trials.values():
            trial.stop()

    def _trial(self, stage: Stage, is_base: bool) -> Trial:
        """The trial of an earlier call, if its process is alive or it is the baseline; else a new one."""
        known = self._trials.get(stage.name)
        if known and known.stage == stage and known.is_open and (known.training or is_base):
            return known
        if known:
            known.stop()
        builder = RunBuilder(self._session, stage, self._plan, self._source.description)
        self._trials[stage.name] = trial = Trial(builder.id, stage=stage, builder=builder)
        return trial

    # ------------------------------------------------------------ starting

    def _start_together(self, trials: Sequence[Trial]) -> list[Trial]:
        """Starts processes in the order of the trials, as many as memory holds, and returns these trials."""
        batch: list[Trial] = []
        base, is_fresh = trials[0], trials[0].training is None
        for trial in trials:
            if not trial.training and len(batch) > 1 and self._is_crowded(batch):
                break
            self._source.progress.reach(STARTING * len(batch) / len(trials), trial.stage.title)
            try:
                if not trial.training:
                    free = self._free_gpu_bytes()
                    trial.training = self._checked_training(trial.stage)
                    trial.trained = trial.training.trained
                    trial.gpu_bytes = max(0, free - self._free_gpu_bytes())
            except (Cancelled, KeyboardInterrupt) as stop:
                self._source.stopped = stop
                break
            except PerfkitError as problem:
                if batch and _is_out_of_memory(problem):
                    break
                trial.failure = problem
                continue
            batch.append(trial)
        again = next((trial for trial in batch if trial.stage.name == AGAIN), None)
        if again and is_fresh and base in batch and self._random.random() < 0.5:
            # Of equal processes the one started first may be slower.
            base.training, again.training = again.training, base.training
            base.trained, again.trained = again.trained, base.trained
        return batch

    def _is_crowded(self, batch: Sequence[Trial]) -> bool:
        """Whether one more training may not fit into the memory of this machine or of its GPU."""
        resident = [sum(map(machine.resident_bytes, _pids([trial]))) for trial in batch]
        if machine.free_memory_bytes() < MEMORY_MARGIN * max(resident):
            return True
        return self._free_gpu_bytes() < MEMORY_MARGIN * max(trial.gpu_bytes for trial in batch)

    def _free_gpu_bytes(self) -> int:
        return machine.free_gpu_bytes(self._gpu) or 0

    def _checked_training(self, stage: Stage) -> Training:
        training = self._start(stage)
        off = [f"{proof.switch} ({proof.evidence})" for proof in training.trained.mechanisms if not proof.ok]
        if off:
            training.child.stop()
            raise RunFailed(
                f"the mechanism is not on: {'; '.join(off)}",
                "The numbers would not be of this recipe, so it is not measured; check the workload's code",
            )
        return training

    # ------------------------------------------------------------ rounds

    def _take_rounds(self, members: list[Trial], stop: StopRule) -> None:
        """Measures rounds until the rule is satisfied.

        A trial that fails takes no further part; nor does one that runs out of memory beside others, which
        then has no result. If a person stops it, the complete rounds are kept.
        """
        rounds: list[Round] = []
        started, share = time.monotonic(), 0.0
        budget_s = min(stop.limit_s, stop.budget_s * max(1, len(members) - 1))
        others = machine.OtherPrograms()
        with machine.sample_utilization(self._gpu) as utilization:
            while members and not self._source.stopped:
                clean = [round for round in rounds if round.disturbed <= DISTURBED]
                needed, spent_s = self._rounds_needed(members, clean, stop), time.monotonic() - started
                if len(rounds) >= stop.rounds and (spent_s > budget_s or len(clean) >= needed):
                    break
                in_time = spent_s / budget_s if spent_s < budget_s else len(rounds) / stop.rounds
                share = max(share, min(0.99, max(len(clean) / needed, in_time)))
                self._source.progress.reach(
                    STARTING + (1 - STARTING) * share, _title(len(rounds) + 1, members)
                )
                try:
                    round = self._take_round(members, stop, utilization)
                except (Cancelled, KeyboardInterrupt) as person:
                    self._source.stopped = person
                    break
                for trial in members:
                    trial.rounds.append(round)
                rounds.append(round)
                others.look()
            is_disturbed = any(round.disturbed > DISTURBED for round in rounds)
            disturber = others.busiest(_pids(members)) if is_disturbed else None
        for trial in members:
            trial.builder.disturber = disturber
            self._ask_the_rest(trial)

    def _take_round(self, members: list[Trial], stop: StopRule, utilization: list[float]) -> Round:
        """One block of every member, in random order."""
        blocks: dict[str, Block] = {}
        ceilings: dict[str, Block] = {}
        disturbed = 0.0
        for trial in self._random.sample(members, len(members)):
            if not trial.training:  # it left with another one
                continue
            start = len(utilization)  # what was sampled before belongs to other trials
            wants_ceiling = stop.ceiling and self._holds_batches and len(trial.rounds) < stop.rounds
            try:
                block, ceiling, share = self._take_block(trial.training, members, wants_ceiling)
            except Cancelled:
                raise
            except PerfkitError as problem:
                _leave(members, trial, problem)
                continue
            trial.gpu_utilization += utilization[start:]
            disturbed, blocks[trial.id] = max(disturbed, share), block
            if ceiling:
                ceilings[trial.id] = ceiling
        return Round(blocks, ceilings, disturbed)

    def _take_block(
        self, training: Training, members: Sequence[Trial], wants_ceiling: bool
    ) -> tuple[Block, Block | None, float]:
        """A block, the ceiling, and the share of the cores or of the GPU that others took meanwhile."""
        preset, pids = self._plan.preset, _pids(members)
        samples = preset.block_samples
        since, before = time.time(), machine.cpu_times(pids)
        block = training.ask("block", Block, samples=samples, seconds=preset.block_s, queues=preset.queues)
        ceiling = training.ask("ceiling", Block, samples=samples) if wants_ceiling else None
        share = machine.taken_share(before, machine.cpu_times(pids))
        if uuid := self._gpu:
            share = max(share, machine.taken_gpu_share(uuid, since, machine.members(pids)))
        return block, ceiling, share

    def _rounds_needed(self, members: Sequence[Trial], clean: Sequence[Round], stop: StopRule) -> float:
        """After how many undisturbed rounds the ratios to the stage before and the baseline are precise."""
        again = members[-1].stage.name == AGAIN
        compared = members[:-1] if again else members
        if stop.precision is None or len(compared) < 2:
            return stop.rounds
        rates = [[round.blocks[trial.id].samples_per_s for trial in members] for round in clean]
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
        if self._source.stopped or not trial.training:
            return
        try:
            trial.peak = trial.training.ask("peak", Peak)
            if trial.stage.recipe.ranks > 1:
                samples = self._plan.preset.block_samples
                trial.communication = trial.training.ask("communication", Communication, samples=samples)
        except (Cancelled, KeyboardInterrupt) as stop:
            self._source.stopped = stop
        except PerfkitError as problem:
            trial.failure = problem
            trial.stop()

    # ------------------------------------------------------------ results

    def _learn_noise(self, trials: Sequence[Trial], base: Trial) -> None:
        """Keeps how far the baseline differs from itself."""
        again = next((trial for trial in trials if trial.stage.name == AGAIN and trial.has_result), None)
        if again and base.has_result:
            pairing = again.pairing("baseline", base, base, (None, False))
            if pairing.interleaved and not pairing.is_disturbed and len(pairing.rates[0]) >= stats.MIN_ROUNDS:
                noise.add(self._plan.device, [stats.aa_pair(*pairing.rates)])

    def _run(self, trial: Trial, before: Sequence[Trial], base: Trial) -> Run:
        if trial.stage.reason:
            return trial.builder.unmeasured("not_applicable", trial.stage.reason)
        if trial.failure:
            return trial.builder.unmeasured("failed", str(trial.failure))
        if not trial.rounds or not base.has_result:
            warm = trial.trained.warm if trial.trained else None
            rate = f"; its warm-up ran at {warm.samples_per_s:.3g} samples/s" if warm and warm.samples else ""
            return trial.builder.unmeasured("cancelled", f"stopped before its first round{rate}")
        if trial is base:
            run = trial.builder.measured(trial, [])
            self._reference = self._reference or (run.samples_per_s.value if run.samples_per_s else None)
            return run
        pairings: list[Pairing] = []
        known = self._source.noise()
        previous = next((other for other in reversed(before) if other.has_result), None)
        if previous and trial.stage.name != AGAIN:
            pairings.append(trial.pairing("previous", previous, base, known))
        pairings.append(trial.pairing("baseline", base, base, known))
        return trial.builder.measured(trial, pairings, self._reference)


def _leave(members: list[Trial], trial: Trial, problem: PerfkitError) -> None:
    """A member that failed takes no further part.

    Without memory beside the others it is to be measured anew; if that happens to the baseline, all others
    are. The rounds of the baseline stay.
    """
    trial.stop()
    if len(members) == 1 or not _is_out_of_memory(problem):
        trial.failure = problem
        members.remove(trial)
        return
    for other in members[1:] if trial is members[0] else [trial]:
        other.stop()
        other.rounds.clear()
    members[:] = [other for other in members if other.training]


def _title(number: int, members: Sequence[Trial]) -> str:
    together = f", {len(members)} runs together" if len(members) > 2 else f" of {members[-1].stage.title}"
    return f"round {number}{together}"


def _is_out_of_memory(problem: PerfkitError) -> bool:
    return isinstance(problem, RunFailed) and problem.kind == "out of memory"


def _pids(trials: Sequence[Trial]) -> set[int]:
    return {pid for trial in trials if trial.training for pid in trial.training.child.pids}
