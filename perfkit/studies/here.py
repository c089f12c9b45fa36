"""This machine as a source of runs: each training is a process, measured in rounds with others."""

import contextlib
import platform
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from perfkit import workloads
from perfkit.errors import Cancelled, InvalidValue, RunFailed
from perfkit.ladder.catalogue import LADDER, Stage, StopRule, preset
from perfkit.machine import devices
from perfkit.process import zygote
from perfkit.process.child import Child, Conversation, environment_of
from perfkit.process.locks import device_lock
from perfkit.recipe import Recipe
from perfkit.results import AGAIN, Run, RunStore, aa_pairs
from perfkit.rules import Target
from perfkit.studies.measurement import Measurement
from perfkit.studies.record import Record
from perfkit.studies.sides import Machine, Measured, Side
from perfkit.studies.sources import Ladder, Plan, Progress, Request, Source, Subject
from perfkit.worker.messages import Description, Trained


class ThisMachine(Source):
    """Trains in child processes."""

    is_costly = True
    uses_any_device: ClassVar[bool] = False  # whether what trains may use other devices than the plan's

    def __init__(self, plan: Plan, progress: Progress, store: RunStore | None = None) -> None:
        super().__init__(plan, progress, store)
        self._session = secrets.token_hex(4)
        self._exit = contextlib.ExitStack()
        self._spare: Conversation | None = None
        self._generation = 0

    @classmethod
    def checked(cls, request: Request) -> Plan:
        device = devices.check_device(request.device)
        if request.host:
            what = f"--host was given '{request.host}' for {device}"
            raise InvalidValue(what, "It is the host of a simulated GPU: add --device sim:v100")
        size, rule = preset(request.preset, device.partition(":")[0])
        # On a CPU the article's ResNet-18 is compute-bound; with `photos` the loader matters there too.
        usual = "cifar_resnet18" if size.name == "paper" else "photos"
        workload = workloads.reference(request.workload or usual)
        names = LADDER if request.stages is None else tuple(request.stages)
        return Plan(Subject(workload, size, device, request.options), Ladder(names), rule, cls)

    def alone(self) -> contextlib.AbstractContextManager[None]:
        device = None if self.uses_any_device else self.plan.subject.device
        return device_lock(device, self.progress.cancelled, self.progress.wait)

    def __enter__(self) -> Self:
        with self._exit:
            self.load()
            self._exit = self._exit.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()
        zygote.end_unneeded(environment_of({}))  # most studies begin in the plain environment

    def load(self) -> None:
        """Starts the first child, which says what the workload and the device are."""
        self._spare, self.description = self._loaded({})
        self._spare.suspend()

    @property
    def target(self) -> Target:
        kind = self.plan.subject.kind
        return Target(
            device=kind,
            offers=frozenset(self.description.offers),
            convolves=self.description.convolves,
            bf16=self.description.facts.bf16 is not False,
            compiler=not devices.compiler_problem(kind),
            glibc=platform.libc_ver()[0] == "glibc",
        )

    def start(self, stage: Stage, has_losses: bool = False) -> tuple[Conversation, Trained]:
        loss_steps = 1 if has_losses else self.plan.rule.loss_steps
        return self.train(stage.recipe, loss_steps, self.plan.rule.warmup_s)

    def train(self, recipe: Recipe, loss_steps: int, warmup_s: float) -> tuple[Conversation, Trained]:
        """A training in a fresh process, and what that says once it is checked and warm."""
        child = self.fresh_child(recipe)
        seed = self.plan.subject.seed
        try:
            trained = child.ask("train", recipe=recipe, seed=seed, loss_steps=loss_steps, warmup_s=warmup_s)
        except BaseException:
            child.stop()
            raise
        return child, trained

    def fresh_child(self, recipe: Recipe) -> Conversation:
        """A process that has loaded the workload, in the environment of a recipe."""
        if self._spare and not recipe.environment():
            spare = self._spare
            self._spare = None
            return spare
        child, _ = self._loaded(recipe.environment())
        return child

    def _loaded(self, environment: Mapping[str, str]) -> tuple[Conversation, Description]:
        subject = self.plan.subject
        child = Child(
            on_progress=self.progress.phase,
            cancelled=self.progress.cancelled,
            timeout_s=self.plan.timeout_s,
            environment=environment,
            generation=self._generation,
        )
        self._exit.callback(child.stop)
        description = child.ask(
            "describe",
            workload=subject.workload,
            preset=subject.size.name,
            options=dict(subject.options),
            device=subject.device,
            code=subject.code,
        )
        return child, description

    def look(self, recipe: Recipe, question: str, warm: bool = True, **arguments: Any) -> Any:
        rule = self.plan.rule
        child, _ = self.train(recipe, rule.loss_steps, rule.warmup_s if warm else 0.0)
        try:
            return child.ask(question, **arguments)
        finally:
            child.stop()

    def measure(self, stages: Sequence[Stage], rule: StopRule) -> list[Run]:
        sides = [Side(stage) for stage in stages]
        how = Machine(self.start, self.renew, self.description.facts.uuid, self.ask_more)
        first = stages[0].recipe
        spreads = {side: self.spread([side.stage.recipe, first]) for side in sides}
        measured = Measured(sides, spreads)
        record = Record(self._session, self.plan, self.description, measured)
        if self._spare:  # nothing else has a zygote yet
            self._prepare([side.stage for side in measured.open()])
        try:
            Measurement(measured, rule, how, self.progress).run()
        except (Cancelled, KeyboardInterrupt, RunFailed) as reason:  # a person, or the end of a training
            self.stopped = reason
        finally:
            zygote.end_generation(self._generation)
            self._generation = 0
        runs = record.runs()
        for run, stage in zip(runs, stages, strict=True):
            if self.store and stage.name == AGAIN and run.pairings:
                recipe = stage.recipe
                pairs = aa_pairs(run.pairings[0])
                self.store.add_noise(self.plan.subject.device, recipe.allocator, recipe.workers > 0, pairs)
        return runs

    def renew(self, stages: Sequence[Stage]) -> None:
        """Has the next processes of stages come from new zygotes."""
        zygote.end_generation(self._generation)
        self._generation = zygote.new_generation()
        self._prepare(stages)

    def _prepare(self, stages: Sequence[Stage]) -> None:
        """Starts the zygotes of stages, which import torch at the same time."""
        for stage in stages:
            zygote.prepare(environment_of(stage.recipe.environment()), self._generation)

    def ask_more(self, side: Side) -> None:
        """Asks a side for anything else that is needed before its processes end."""
