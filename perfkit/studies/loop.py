"""The measuring loop of all studies: stages in, runs out.

Every stage trains in a fresh process. The processes stay alive, and each round measures one block of each, in
random order, so that the drift of a noisy machine cancels within a round and the numbers that are shown
together come from the same rounds. What memory does not hold beside all others is measured beside the
baseline alone.
"""

import random
import secrets
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec import structs

from perfkit.errors import Cancelled, PerfkitError, RunFailed
from perfkit.ladder.catalogue import Stage
from perfkit.machine import cores, gpus
from perfkit.process.child import Conversation
from perfkit.results import stats
from perfkit.results.run import AGAIN, DISTURBED, Communication, Run
from perfkit.results.store import RunStore
from perfkit.studies.record import Noise, Round, Trial, begun, ended
from perfkit.studies.sources import Plan, Progress, Source, StopRule
from perfkit.worker.messages import Block, Peak, Trained

A = TypeVar("A")

STARTING = 0.25
"""The part of a measurement's time until all processes are warm, roughly: for the progress bar."""
MEMORY_MARGIN = 1.5
"""Another training needs as much memory as the largest so far, and some more for its batches."""


class Training(NamedTuple):
    """A process that trains a recipe, with several ranks a process for each; and what it said once warm."""

    child: Conversation
    trained: Trained


class Loop(Source):
    """A source that measures in processes, which stay alive from one call of `measure` to the next."""

    holds_batches = True
    """Whether a step on a batch that is held can be measured."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        super().__init__(plan, progress)
        self._session = secrets.token_hex(4)
        self._random = random.Random(plan.seed)
        self._trials: dict[str, Trial] = {}
        self._reference: float | None = None
        """The rate of the baseline, in samples/s, when it was measured first."""

    def start(self, stage: Stage) -> Training:
        """Starts the process of a stage, and returns once it is warm."""
        raise NotImplementedError

    def noise(self) -> Noise:
        """The A/A noise that verdicts take into account."""
        return RunStore().expected_noise(self.plan.device)

    def ask(self, child: Conversation, question: str, kind: type[A], **arguments: Any) -> A:
        """The answer of a process, which has the plan's time limit for it."""
        if self.plan.timeout_s:
            child.limit(self.plan.timeout_s)
        return child.ask(question, kind, **arguments)

    def measure(self, stages: Sequence[Stage], stop: StopRule) -> list[Run]:
        trials = [self._trial(stage, is_base=stage is stages[0]) for stage in stages]
        try:
            self._measure_together(trials, stop)
        except (Cancelled, KeyboardInterrupt, RunFailed) as reason:  # a person, or the end of a training
            self.stopped = reason
        base = next((trial for trial in trials if trial.has_result), trials[0])
        self._learn_noise(trials, base)
        return [self._run(trial, trials[:at], base) for at, trial in enumerate(trials)]

    def renew(self) -> None:
        for trial in self._trials.values():
            trial.stop()

    def _trial(self, stage: Stage, is_base: bool) -> Trial:
        """The trial of an earlier call, if its process is alive or it is the baseline; else a new one."""
        known = self._trials.get(stage.name)
        if known and known.stage == stage and known.is_open and (known.child or is_base):
            return known
        if known:
            known.stop()
        self._trials[stage.name] = trial = Trial(
            stage, begun(self._session, stage, self.plan, self.description)
        )
        return trial

    def _measure_together(self, trials: list[Trial], stop: StopRule) -> None:
        """What memory did not hold has no result then: it is measured beside the baseline, or else alone."""
        groups = [trials]
        while groups:
            group = [trial for trial in groups.pop(0) if trial.is_open]
            if len(group) < 2 and all(trial.rounds for trial in group):
                continue
            for other in self._trials.values():
                if other not in group:
                    other.stop()
            self._take_rounds(self._start_together(group), stop)
            lacking = [trial for trial in group if trial.is_open and not trial.rounds]
            beside = group[:1] if len(group) > 2 else []
            groups += [[*beside, trial] for trial in lacking if trial not in beside]

    # ------------------------------------------------------------ starting

    def _start_together(self, trials: Sequence[Trial]) -> list[Trial]:
        """Starts processes in the order of the trials, as many as memory holds, and returns these trials."""
        batch: list[Trial] = []
        base, is_fresh = trials[0], not trials[0].child
        for trial in trials:
            if not trial.child:
                if len(batch) > 1 and self._is_crowded(batch):
                    break
                self.progress.reach(STARTING * len(batch) / len(trials), trial.stage.title)
                try:
                    self._start_one(trial)
                except PerfkitError as problem:
                    if batch and _is_out_of_memory(problem):
                        break
                    trial.fail(problem)
                    continue
            batch.append(trial)
        again = next((trial for trial in batch if trial.stage.name == AGAIN), None)
        if again and is_fresh and base in batch and self._random.random() < 0.5:
            # Of equal processes the one started first may be slower.
            base.child, again.child = again.child, base.child
            base.trained, again.trained = again.trained, base.trained
        return batch

    def _start_one(self, trial: Trial) -> None:
        free = self._free_gpu_bytes()
        trial.child, trial.trained = training = self.start(trial.stage)
        proofs = training.trained.mechanisms
        off = [f"{proof.switch} ({proof.evidence})" for proof in proofs if not proof.ok]
        if off:
            raise RunFailed(
                f"the mechanism is not on: {'; '.join(off)}",
                "The numbers would not be of this recipe, so it is not measured; check the workload's code",
            )
        trial.gpu_bytes = max(0, free - self._free_gpu_bytes())

    def _is_crowded(self, batch: Sequence[Trial]) -> bool:
        """Whether one more training may not fit into the memory of this machine or of its GPU."""
        resident = [sum(map(cores.resident_bytes, _pids([trial]))) for trial in batch]
        if cores.free_memory_bytes() < MEMORY_MARGIN * max(resident):
            return True
        return self._free_gpu_bytes() < MEMORY_MARGIN * max(trial.gpu_bytes for trial in batch)

    def _free_gpu_bytes(self) -> int:
        return gpus.free_gpu_bytes(self.description.facts.uuid) or 0

    # ------------------------------------------------------------ rounds

    def _take_rounds(self, members: list[Trial], stop: StopRule) -> None:
        """Measures rounds until the rule is satisfied, then what is measured once.

        A trial that fails takes no further part; nor does one that runs out of memory beside others, which
        then has no result.
        """
        rounds: list[Round] = []
        started = time.monotonic()
        budget_s = min(stop.limit_s, stop.budget_s * max(1, len(members) - 1))
        others = cores.OtherPrograms()
        try:
            with gpus.sample_utilization(self.description.facts.uuid) as utilization:
                while members:
                    clean = [round for round in rounds if round.disturbed <= DISTURBED]
                    needed, spent_s = _rounds_needed(members, clean, stop), time.monotonic() - started
                    if len(rounds) >= stop.rounds and (spent_s > budget_s or len(clean) >= needed):
                        break
                    part = min(0.99, max(len(clean) / needed, spent_s / budget_s if budget_s else 0.0))
                    title = f"round {len(rounds) + 1} of {members[-1].stage.title}"
                    self.progress.reach(STARTING + (1 - STARTING) * part, title)
                    rounds.append(self._take_round(members, stop, utilization))
                    others.look()
                    members = [trial for trial in members if trial.child]
        finally:
            if any(round.disturbed > DISTURBED for round in rounds):
                disturber = others.busiest(_pids(members))
                for trial in members:
                    trial.disturber = disturber
        for trial in members:
            self._ask_the_rest(trial)

    def _take_round(self, members: Sequence[Trial], stop: StopRule, utilization: list[float]) -> Round:
        """One block of every member, in random order."""
        round = Round()
        for trial in self._random.sample(members, len(members)):
            if not trial.child:  # it left with another one
                continue
            start = len(utilization)  # what was sampled before belongs to other trials
            wants_ceiling = stop.ceiling and self.holds_batches and len(trial.rounds) < stop.rounds
            try:
                self._take_block(trial, _pids(members), wants_ceiling, round)
            except PerfkitError as problem:
                if trial.rounds and getattr(problem, "kind", "") == "ended":
                    raise
                _leave(members, trial, problem)
                continue
            trial.gpu_utilization += utilization[start:]
        for trial in members:
            if trial.child:
                trial.rounds.append(round)
        return round

    def _take_block(self, trial: Trial, pids: set[int], wants_ceiling: bool, round: Round) -> None:
        """A block, the ceiling, and the share of the cores or of the GPU that others took meanwhile."""
        assert trial.child
        preset, own = self.plan.preset, trial.run.id
        size = {"samples": preset.block_samples}
        since, before = time.time(), cores.cpu_times(pids)
        least = {"seconds": preset.block_s, "queues": preset.queues}
        block = self.ask(trial.child, "block", Block, **size, **least)
        if wants_ceiling:
            round.ceilings[own] = self.ask(trial.child, "ceiling", Block, **size)
        round.blocks[own] = block
        share = cores.taken_share(before, cores.cpu_times(pids))
        if uuid := self.description.facts.uuid:
            share = max(share, gpus.taken_gpu_share(uuid, since, cores.members(pids)))
        round.disturbed = max(round.disturbed, share)

    def _ask_the_rest(self, trial: Trial) -> None:
        assert trial.child
        try:
            peak, spent = self.ask(trial.child, "peak", Peak), None
            if trial.stage.recipe.ranks > 1:
                samples = self.plan.preset.block_samples
                spent = self.ask(trial.child, "communication", Communication, samples=samples)
        except PerfkitError as problem:
            trial.fail(problem)
            return
        trial.recompiles = peak.recompiles
        trial.run = structs.replace(
            trial.run,
            peak_memory_bytes=peak.allocated,
            peak_reserved_bytes=peak.reserved,
            communication=spent,
        )

    # ------------------------------------------------------------ results

    def _learn_noise(self, trials: Sequence[Trial], base: Trial) -> None:
        """Keeps how far the baseline differs from itself."""
        again = next((trial for trial in trials if trial.stage.name == AGAIN and trial.has_result), None)
        if again:
            pairing = again.pairing("baseline", base, base, (None, False))
            if pairing.interleaved and not pairing.is_disturbed and len(pairing.rates[0]) >= stats.MIN_ROUNDS:
                RunStore().add_noise(self.plan.device, [stats.aa_pair(*pairing.rates)])

    def _run(self, trial: Trial, before: Sequence[Trial], base: Trial) -> Run:
        if not trial.has_result:
            return ended(trial.run)
        if trial is base:
            run = trial.result([])
            self._reference = self._reference or (run.samples_per_s.value if run.samples_per_s else None)
            return run
        known = self.noise()
        pairings = [trial.pairing("baseline", base, base, known)]
        previous = next((other for other in reversed(before) if other.has_result), None)
        if previous and trial.stage.name != AGAIN:
            pairings.insert(0, trial.pairing("previous", previous, base, known))
        return trial.result(pairings, self._reference)


def _rounds_needed(members: Sequence[Trial], clean: Sequence[Round], stop: StopRule) -> float:
    """After how many undisturbed rounds the ratios to the stage before and the baseline are precise."""
    compared = [trial for trial in members if trial.stage.name != AGAIN]
    if stop.precision is None or len(compared) < 2:
        return stop.rounds
    logs = np.log([trial.rates(clean) for trial in compared])
    ratios = np.vstack([logs[1:] - logs[:-1], logs[2:] - logs[:1]]).T
    return max(stop.rounds, stats.rounds_needed(ratios, stop.precision, stop.part))


def _leave(members: Sequence[Trial], trial: Trial, problem: PerfkitError) -> None:
    """A member that failed takes no further part.

    Without memory beside the others it is to be measured anew; if that happens to the baseline, all others
    are. The rounds of the baseline stay.
    """
    trial.stop()
    if not _is_out_of_memory(problem) or not any(other.child for other in members):
        trial.fail(problem)
        return
    for other in members[1:] if trial is members[0] else [trial]:
        other.stop()
        other.rounds.clear()


def _is_out_of_memory(problem: PerfkitError) -> bool:
    return isinstance(problem, RunFailed) and problem.kind == "out of memory"


def _pids(trials: Sequence[Trial]) -> set[int]:
    return {pid for trial in trials if trial.child for pid in trial.child.pids}
