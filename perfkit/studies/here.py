"""This machine as a source of runs: every training is a process of its own, measured in rounds with others.

The processes stay alive, and each round measures one block of each, in random order, so that the drift of a
noisy machine cancels within a round and the numbers that are shown together come from the same rounds. What
memory does not hold beside all others is measured beside the baseline alone, or else by itself.
"""

import contextlib
import platform
import random
import secrets
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
from msgspec import structs

from perfkit import machine, workloads
from perfkit.errors import Cancelled, InvalidValue, PerfkitError, RunFailed
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import LADDER, Preset, Stage
from perfkit.machine import cores, devices, gpus
from perfkit.process.child import EVERYTHING, Child, Conversation, device_lock
from perfkit.process.failures import OUT_OF_MEMORY
from perfkit.recipe import Recipe
from perfkit.results import stats
from perfkit.results.run import AGAIN, Role, Run
from perfkit.rules import Target
from perfkit.studies.record import Round, Trial, begun, ended, undisturbed
from perfkit.studies.sources import Plan, Progress, Request, Source
from perfkit.worker.messages import Trained

STARTING = 0.25
"""The part of a measurement's time until all processes are warm, roughly: for the progress bar."""
MEMORY_MARGIN = 1.5
"""Another training needs as much memory as the largest so far, and some more for its batches."""


class ThisMachine(Source):
    """Trains in child processes, which stay alive from one call of `measure` to the next."""

    uses_any_device: ClassVar[bool] = False
    """Whether what trains may use other devices than the plan's."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        super().__init__(plan, progress)
        self._session = secrets.token_hex(4)
        self._random = random.Random(plan.seed)
        self._trials: dict[str, Trial] = {}
        self._reference: float | None = None
        """The rate of the baseline, in samples/s, when it was measured first."""
        self._exit = contextlib.ExitStack()
        self._spare: Conversation | None = None

    @classmethod
    def checked(cls, request: Request) -> Plan:
        device = devices.check_device(request.device)
        if request.host:
            what = f"--host was given '{request.host}' for {device}"
            raise InvalidValue(what, "It is the host of a simulated GPU: add --device sim:v100")
        size = catalogue.preset(request.preset, device.split(":")[0])
        # On a CPU the article's ResNet-18 is compute-bound; with `photos` the loader matters there too.
        usual = "cifar_resnet18" if size.name == "paper" else "photos"
        workload = workloads.reference(request.workload or usual)
        names = LADDER if request.stages is None else tuple(request.stages)
        return Plan(workload, size, device, names, cls, options=request.options)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        device = EVERYTHING if self.uses_any_device else self.plan.device
        waiting = f"waiting: another run uses {device}"
        return device_lock(device, self.progress.cancelled, lambda: self.progress.phase(waiting))

    def __enter__(self) -> Self:
        with self._exit:
            self.load()
            self._exit = self._exit.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def load(self) -> None:
        """Starts the first child; sets `description`."""
        self._spare = self.fresh_child(Recipe())

    @property
    def target(self) -> Target:
        kind, flags = self.plan.device.split(":")[0], machine.facts()["cpu"].get("flags")
        is_emulated = kind == "cpu" and flags and not any("bf16" in flag for flag in flags)
        return Target(
            device=kind,
            offers=frozenset(self.description.offers),
            convolves=self.description.convolves,
            bf16=self.description.facts.bf16 is not False,
            compiler=not devices.compiler_problem(kind),
            glibc=platform.libc_ver()[0] == "glibc",
            count=self.description.facts.count or 1,
            doubtful={"amp": "this CPU has no bfloat16 instructions"} if is_emulated else {},
        )

    # ------------------------------------------------------------ processes

    def start(self, stage: Stage) -> tuple[Conversation, Trained]:
        """Starts the process of a stage, and returns once it is warm."""
        return self.train(stage.recipe, self.plan.preset.loss_steps, self.plan.preset.warmup_s)

    def train(
        self, recipe: Recipe, loss_steps: int, warmup_s: float = 0.0, child: Conversation | None = None
    ) -> tuple[Conversation, Trained]:
        """A training in a process, or in one for each rank; and what it says once it is checked and warm.

        The losses of the first `loss_steps` are kept; `child` has loaded the workload (a fresh one if None).
        """
        child = child or self.fresh_child(recipe)
        how = {"seed": self.plan.seed, "warmup_s": warmup_s}
        try:
            trained = child.ask("train", recipe=recipe, loss_steps=loss_steps, **how)
        except BaseException:
            child.stop()
            raise
        return child, trained

    def fresh_child(self, recipe: Recipe) -> Conversation:
        """A process that has loaded the workload, in the environment of a recipe."""
        if self._spare and recipe.ranks == 1 and not recipe.environment():
            spare, self._spare = self._spare, None
            return spare
        plan, progress = self.plan, self.progress
        child = Child(progress.phase, progress.cancelled, plan.timeout_s, recipe.environment(), recipe.ranks)
        self._exit.callback(child.stop)
        what = {"workload": plan.workload, "preset": plan.preset.name, "options": dict(plan.options)}
        self.description = child.ask("describe", device=plan.device, **what)
        return child

    # ------------------------------------------------------------ answers

    def look(self, recipe: Recipe, question: str, warm: bool = True, **arguments: Any) -> Any:
        preset = self.plan.preset
        child, _ = self.train(recipe, preset.loss_steps, preset.warmup_s if warm else 0.0)
        try:
            return child.ask(question, **arguments)
        finally:
            child.stop()

    def measure(self, stages: Sequence[Stage], preset: Preset) -> list[Run]:
        trials = [self._trial(stage, is_base=stage is stages[0]) for stage in stages]
        try:
            self._measure_together(trials, preset)
        except (Cancelled, KeyboardInterrupt, RunFailed) as reason:  # a person, or the end of a training
            self.stopped = reason
        for trial in trials:
            if trial.stage.name == AGAIN and trial.has_result:
                rounds = undisturbed(trial.common(trials[0]))
                if len(rounds) >= stats.MIN_ROUNDS:  # how far the baseline differs from itself is kept
                    pair = stats.aa_pair(trial.rates(rounds), trials[0].rates(rounds))
                    if self.store:
                        self.store.add_noise(self.plan.device, [pair])
        noise = self.noise()
        runs, before = list[Run](), list[Trial]()
        for trial in trials:
            if not trial.has_result:
                runs.append(ended(trial.run))
                continue
            pairings = []
            if before:
                sides: list[tuple[Role, Trial]] = [("previous", before[-1]), ("baseline", before[0])]
                sides = sides[trial.stage.name == AGAIN :]
                pairings = [trial.pairing(role, other, before[0], noise) for role, other in sides]
            runs.append(trial.result(pairings, self._reference))
            if not before and (rate := runs[-1].samples_per_s):
                self._reference = self._reference or rate.value
            before.append(trial)
        return runs

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

    def _measure_together(self, trials: Sequence[Trial], preset: Preset) -> None:
        """Measures trials in the same rounds; what memory did not hold, beside the baseline or else alone."""
        group = [trial for trial in trials if trial.is_open]
        if len(group) < 2 and all(trial.rounds for trial in group):
            return
        for other in self._trials.values():
            if other not in group:
                other.stop()
        self._take_rounds(self._start_together(group), preset)
        beside = group[:1] if len(group) > 2 else []
        lacking = [[*beside, trial] for trial in group[1:] if not trial.rounds]
        for further in [*lacking, group[:1]]:
            self._measure_together(further, preset)

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
                    if batch and getattr(problem, "kind", "") == OUT_OF_MEMORY:
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
        trial.child, trained = self.start(trial.stage)
        trial.trained = trained
        off = [f"{proof.name} ({proof.evidence})" for proof in trained.mechanisms if not proof.ok]
        if off:
            raise RunFailed(
                f"the mechanism is not on: {'; '.join(off)}",
                "The numbers would not be of this recipe, so it is not measured; check the workload's code",
            )
        trial.gpu_bytes = max(0, free - self._free_gpu_bytes())

    def _is_crowded(self, batch: Sequence[Trial]) -> bool:
        """Whether one more training may not fit into the memory of this machine or of its GPU."""
        resident = [cores.resident_bytes(_pids([trial])) for trial in batch]
        if cores.free_memory_bytes() < MEMORY_MARGIN * max(resident):
            return True
        return self._free_gpu_bytes() < MEMORY_MARGIN * max(trial.gpu_bytes for trial in batch)

    def _free_gpu_bytes(self) -> int:
        return gpus.free_gpu_bytes(self.description.facts.uuid) or 0

    # ------------------------------------------------------------ rounds

    def _take_rounds(self, members: list[Trial], preset: Preset) -> None:
        """Measures rounds until the preset is satisfied, then what is measured once.

        A trial that fails takes no further part. If one runs out of memory beside several others, all end.
        """
        rounds: list[Round] = []
        started = time.monotonic()
        budget_s = min(preset.limit_s, preset.budget_s * max(1, len(members) - 1))
        others = cores.OtherPrograms()
        try:
            with gpus.sample_utilization(self.description.facts.uuid) as utilization:
                while members:
                    clean = undisturbed(rounds)
                    needed, spent_s = _rounds_needed(members, clean, preset), time.monotonic() - started
                    if len(rounds) >= preset.rounds and (spent_s >= budget_s or len(clean) >= needed):
                        break
                    part = min(0.99, max(len(clean) / needed, spent_s / budget_s if budget_s else 0.0))
                    title = f"round {len(rounds) + 1} of {members[-1].stage.title}"
                    self.progress.reach(STARTING + (1 - STARTING) * part, title)
                    rounds.append(self._take_round(members, preset, utilization))
                    others.look()
                    members = [trial for trial in members if trial.child]
        finally:
            if len(undisturbed(rounds)) < len(rounds):
                disturber = others.busiest(_pids(members))
                for trial in members:
                    trial.disturber = disturber
        for trial in members:
            self._ask_the_rest(trial)

    def _take_round(self, members: Sequence[Trial], preset: Preset, utilization: list[float]) -> Round:
        """One block of every member, in random order."""
        round = Round()
        for trial in self._random.sample(members, len(members)):
            if not trial.child:  # all have ended
                break
            start = len(utilization)  # what was sampled before belongs to other trials
            wants_ceiling = preset.ceiling and len(trial.rounds) < preset.rounds
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
        preset, size = self.plan.preset, {"samples": self.plan.preset.block_samples}
        since, before = time.time(), cores.cpu_times(pids)
        block = trial.child.ask("block", **size, seconds=preset.block_s, queues=preset.queues)
        if wants_ceiling:
            round.ceilings[trial] = trial.child.ask("ceiling", **size)
        round.blocks[trial] = block
        share = cores.taken_share(before, cores.cpu_times(pids))
        if uuid := self.description.facts.uuid:
            own = {process.pid for process in cores.members(pids)}
            share = max(share, gpus.taken_gpu_share(uuid, since, own))
        round.disturbed = max(round.disturbed, share)

    def _ask_the_rest(self, trial: Trial) -> None:
        assert trial.child
        try:
            peak, spent = trial.child.ask("peak"), None
            if trial.stage.recipe.ranks > 1:
                spent = trial.child.ask("communication", samples=self.plan.preset.block_samples)
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


def _rounds_needed(members: Sequence[Trial], clean: Sequence[Round], preset: Preset) -> float:
    """After how many undisturbed rounds the ratios to the stage before and the baseline are precise."""
    compared = [trial for trial in members if trial.stage.name != AGAIN]
    if len(compared) < 2 or not preset.budget_s:
        return preset.rounds
    logs = np.log([trial.rates(clean) for trial in compared])
    ratios = np.vstack([logs[1:] - logs[:-1], logs[2:] - logs[:1]]).T
    return max(preset.rounds, stats.rounds_needed(ratios, preset.precision, preset.part))


def _leave(members: Sequence[Trial], trial: Trial, problem: PerfkitError) -> None:
    """A member that failed takes no further part.

    If memory is short, all end, and those that are not alone are measured anew: beside fewer others. The
    rounds of the baseline stay.
    """
    if getattr(problem, "kind", "") != OUT_OF_MEMORY or len(members) < 2:
        trial.fail(problem)
        return
    for other in members:
        other.stop()
    for other in members[1:]:
        other.rounds.clear()


def _pids(trials: Sequence[Trial]) -> set[int]:
    return {pid for trial in trials if trial.child for pid in trial.child.pids}
