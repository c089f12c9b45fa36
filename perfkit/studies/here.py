"""This machine as a source of runs: each training is a process, measured in rounds with others."""

import contextlib
import platform
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfkit import workloads
from perfkit.errors import Cancelled, InvalidValue, RunFailed
from perfkit.ladder.catalogue import LADDER, Stage, StopRule, preset
from perfkit.machine import devices
from perfkit.process import zygote
from perfkit.process.child import environment_of
from perfkit.process.locks import device_lock
from perfkit.recipe import Recipe
from perfkit.results import Run, RunStore, Spread, aa_pairs, stats
from perfkit.rules import Target
from perfkit.studies.conversation import StartedTraining, TrainingChild, TrainingConversation
from perfkit.studies.measurement import Measurement
from perfkit.studies.record import Record
from perfkit.studies.sides import AskMore, Bench, MeasuredSides, Side
from perfkit.studies.sources import Ladder, Plan, Progress, Request, Session, Source, Subject
from perfkit.worker.messages import Description, TrainingReport


class ThisMachine(Source["TrainingSession"]):
    """Trains in child processes."""

    is_costly = True

    @classmethod
    def checked(cls, request: Request) -> Plan:
        device = devices.check_device(request.device)
        if request.host:
            what = f"--host was given '{request.host}' for {device}"
            raise InvalidValue(what, "It is the host of a simulated GPU: add --device sim:v100")
        size, rule = preset(request.preset, device.partition(":")[0])
        # On a CPU the article's ResNet-18 is compute-bound; with `photos` the loader matters there too.
        default = "cifar_resnet18" if size.name == "paper" else "photos"
        workload = workloads.reference(request.workload or default)
        names = LADDER if request.stages is None else tuple(request.stages)
        return Plan(Subject(workload, size, device, request.options), Ladder(names), rule, cls)

    def lock(self, progress: Progress) -> contextlib.AbstractContextManager[None]:
        return device_lock(self.plan.subject.device, progress.cancelled, progress.wait)

    @contextlib.contextmanager
    def session(self, progress: Progress, store: RunStore | None) -> Iterator["TrainingSession"]:
        try:
            with contextlib.ExitStack() as ending:
                spare, description = TrainingSession(self, progress, store, ending).loaded({})
                spare.suspend()
                yield TrainingSession(replace(self, reported=description), progress, store, ending, spare)
        finally:
            zygote.end_unneeded(environment_of({}))  # most studies begin in the plain environment

    @property
    def target(self) -> Target:
        return target_of(self.plan.subject.kind, self.description)


def target_of(kind: str, description: Description) -> Target:
    """The target of a training on a kind of device here, by what workload and device have reported."""
    return Target(
        device=kind,
        offers=frozenset(description.offers),
        convolves=description.convolves,
        bf16=description.facts.bf16 is not False,
        compiler=not devices.compiler_problem(kind),
        glibc=platform.libc_ver()[0] == "glibc",
    )


@dataclass(eq=False)
class RoundSession(Session):
    """Trainings in processes on this machine, measured in rounds."""

    ending: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Ends every process that was started."""
    spare: TrainingConversation | None = None  # a process in which nothing is set yet, and nobody has taken
    id: str = field(default_factory=lambda: secrets.token_hex(4), init=False)

    def start_training(self, stage: Stage, has_losses: bool = False) -> StartedTraining:
        """Starts a training, and says what it has reported once it is warm; see `Bench.start_training`."""
        raise NotImplementedError

    def spread(self, recipes: Sequence[Recipe]) -> Spread:
        """How far equal processes of these recipes differ here."""
        device = self.source.plan.subject.device
        workers = any(recipe.workers for recipe in recipes)
        if self.store is None:
            return stats.usual_spread(device, workers)
        keeps = all(recipe.allocator == "keep" for recipe in recipes)
        return self.store.spread(device, "keep" if keeps else "default", workers)

    def renew(self, stages: Sequence[Stage]) -> None:
        """Makes the next processes independent of anything that earlier ones left behind."""

    def report_of(self, child: TrainingConversation, **arguments: Any) -> TrainingReport:
        """The report of a training once it is warm; a process that fails has ended by then."""
        try:
            return child.train(**arguments)
        except BaseException:
            child.stop()
            raise

    def measure(self, stages: Sequence[Stage], rule: StopRule, ask_more: AskMore | None = None) -> list[Run]:
        """As any session; `ask_more` asks a side for anything else before its processes end."""
        source = self.source
        sides = [Side(stage) for stage in stages]
        first = stages[0].recipe
        spreads = {side: self.spread([side.stage.recipe, first]) for side in sides}
        measured = MeasuredSides(sides, spreads)
        record = Record(self.id, source.plan, source.description, measured)
        bench = Bench(self.start_training, self.renew, source.description.facts.uuid, ask_more)
        try:
            Measurement(measured, rule, bench, self.progress).run()
        except (Cancelled, KeyboardInterrupt, RunFailed) as reason:  # a person stops it, or a training ends
            self.stopped = reason
        return record.runs()


@dataclass(eq=False)
class TrainingSession(RoundSession):
    """Processes that train a workload; each has loaded it."""

    _generation: int = field(default=0, init=False)

    def measure(self, stages: Sequence[Stage], rule: StopRule, ask_more: AskMore | None = None) -> list[Run]:
        if self.spare:  # the first measurement: the zygotes of other environments start at the same time
            self._prepare([stage for stage in stages if not stage.reason])
        try:
            runs = super().measure(stages, rule, ask_more)
        finally:
            zygote.end_generation(self._generation)
            self._generation = 0
        for run in runs:
            if self.store and run.is_again and run.pairings:
                recipe = Recipe.from_dict(run.recipe)
                pairs = aa_pairs(run.pairings[0])
                self.store.add_aa_pairs(run.device, recipe.allocator, recipe.workers > 0, pairs)
        return runs

    def start_training(self, stage: Stage, has_losses: bool = False) -> StartedTraining:
        rule = self.source.plan.rule
        return self._train(stage.recipe, 1 if has_losses else rule.loss_steps, rule.warmup_s)

    def ask_training(self, recipe: Recipe, question: str, warm: bool = True, **arguments: Any) -> Any:
        rule = self.source.plan.rule
        child, _ = self._train(recipe, rule.loss_steps, rule.warmup_s if warm else 0.0)
        with child:
            return child.ask(question, **arguments)

    def ask(self, recipe: Recipe, question: str, **arguments: Any) -> Any:
        with self._fresh_child(recipe) as child:
            return child.ask(question, recipe=recipe, **arguments)

    def _train(self, recipe: Recipe, loss_steps: int, warmup_s: float) -> StartedTraining:
        """A training in a fresh process, and what that says once it is checked and warm."""
        child = self._fresh_child(recipe)
        seed = self.source.plan.subject.seed
        report = self.report_of(child, recipe=recipe, seed=seed, loss_steps=loss_steps, warmup_s=warmup_s)
        return child, report

    def _fresh_child(self, recipe: Recipe) -> TrainingConversation:
        """A process that has loaded the workload, in the environment of a recipe."""
        if self.spare and not recipe.environment():
            spare, self.spare = self.spare, None
            return spare
        return self.loaded(recipe.environment())[0]

    def renew(self, stages: Sequence[Stage]) -> None:
        """Starts new zygotes, from which the next processes of stages come."""
        zygote.end_generation(self._generation)
        self._generation = zygote.new_generation()
        self._prepare(stages)

    def _prepare(self, stages: Sequence[Stage]) -> None:
        """Starts the zygotes of stages, which import torch at the same time."""
        for stage in stages:
            zygote.prepare(environment_of(stage.recipe.environment()), self._generation)

    def loaded(self, environment: Mapping[str, str]) -> tuple[TrainingConversation, Description]:
        """A process that has loaded the workload, and what it says of that."""
        subject = self.source.plan.subject
        child = TrainingChild(
            on_progress=self.progress.phase,
            cancelled=self.progress.cancelled,
            timeout_s=self.source.plan.timeout_s,
            environment=environment,
            generation=self._generation,
        )
        self.ending.callback(child.stop)
        description = child.ask(
            "describe",
            workload=subject.workload,
            preset=subject.size.name,
            options=dict(subject.options),
            device=subject.device,
            code=subject.code,
        )
        return child, description
