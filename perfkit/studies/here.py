"""This machine as a source of runs: every training is a process of its own."""

import contextlib
import platform
from collections.abc import Iterator
from typing import Any, ClassVar, Self

from perfkit import machine, workloads
from perfkit.errors import InvalidValue
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import LADDER, Exactness, Stage
from perfkit.machine import devices
from perfkit.process.child import Child, Conversation
from perfkit.process.lock import device_lock
from perfkit.recipe import Recipe
from perfkit.results.parity import Check, Parity
from perfkit.rules import Target
from perfkit.studies.loop import A, Loop, Training
from perfkit.studies.sources import Plan, Progress, Request
from perfkit.worker.messages import Description, ParityReport, Trained

_COLD = ("memory", "syncs")
"""Looks that take the first steps."""


class ThisMachine(Loop):
    """Trains in child processes, while it has the device to itself."""

    locks: ClassVar[str] = ""
    """What it has to itself; the plan's device if empty."""

    def __init__(self, plan: Plan, progress: Progress) -> None:
        super().__init__(plan, progress)
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
        workload = request.workload or ("cifar_resnet18" if size.name == "paper" else "photos")
        workloads.reference(workload)
        names = LADDER if request.stages is None else tuple(request.stages)
        return Plan(workload, size, device, names, cls, options=request.options)

    def __enter__(self) -> Self:
        device = self.locks or self.plan.device
        waiting = f"waiting: another run uses {device}"
        with self._exit:
            lock = device_lock(device, self.progress.cancelled, lambda: self.progress.phase(waiting))
            self._exit.enter_context(lock)
            self.load()
            self._exit = self._exit.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def describe(self) -> None:
        """Sets `description`; others may measure meanwhile."""
        with self._exit:
            self.load()

    def load(self) -> None:
        """Starts the first child; sets `description`."""
        self._spare, self.description = self._child(Recipe())

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

    def start(self, stage: Stage) -> Training:
        """Starts the process of a stage, and returns once it is warm."""
        return self.train(stage.recipe, self.plan.preset.loss_steps, self.plan.preset.warmup_s)

    def train(
        self,
        recipe: Recipe,
        loss_steps: int,
        warmup_s: float = 0.0,
        child: Conversation | None = None,
    ) -> Training:
        """A training that is built, checked and warm: in one process, or in one for each rank.

        The losses of the first `loss_steps` are kept; `child` has loaded the workload (a fresh one if None).
        """
        child = child or self._fresh_child(recipe)
        how = {"seed": self.plan.seed, "warmup_s": warmup_s}
        with _stopped_on_error(child):
            trained = self.ask(child, "train", Trained, recipe=recipe.to_dict(), loss_steps=loss_steps, **how)
        return Training(child, trained)

    def _fresh_child(self, recipe: Recipe) -> Conversation:
        if self._spare and recipe.ranks == 1 and not recipe.environment():
            spare, self._spare = self._spare, None
            return spare
        return self._child(recipe)[0]

    def _child(self, recipe: Recipe) -> tuple[Conversation, Description]:
        plan, progress = self.plan, self.progress
        child = Child(progress.phase, progress.cancelled, plan.timeout_s, recipe.environment(), recipe.ranks)
        self.keep(child)
        what = {"workload": plan.workload, "preset": plan.preset.name, "options": dict(plan.options)}
        with _stopped_on_error(child):
            return child, self.ask(child, "describe", Description, device=plan.device, **what)

    def keep(self, child: Conversation) -> None:
        """Has a child ended with this source."""
        self._exit.callback(child.stop)

    # ------------------------------------------------------------ answers

    def look(self, recipe: Recipe, question: str, kind: type[A], **arguments: Any) -> A:
        preset = self.plan.preset
        warmup_s = 0.0 if question in _COLD else preset.warmup_s
        child, _ = self.train(recipe, preset.loss_steps, warmup_s)
        try:
            return self.ask(child, question, kind, **arguments)
        finally:
            child.stop()

    # ------------------------------------------------------------ parity

    def parity(self, title: str, recipe: Recipe, steps: int) -> Parity:
        if recipe.ranks > 1:
            exactness: Exactness = "tolerance"
            report, trained = self._beside_one_rank(recipe, steps)
        else:
            plain = Recipe(batch_size=recipe.batch_size, accumulation=recipe.accumulation)
            exactness, child = catalogue.exactness(recipe, plain), self._fresh_child(recipe)
            how = {"exactness": exactness, "seed": self.plan.seed, "steps": steps}
            report = self.ask(child, "parity", ParityReport, recipe=recipe.to_dict(), **how)
            trained = self.train(recipe, loss_steps=2, child=child).trained
        off = [f"{proof.switch}: {proof.evidence}" for proof in trained.mechanisms if not proof.ok]
        proven = f"{len(trained.mechanisms)} switches proven by the built objects"
        mechanisms = Check("mechanisms", not off, "; ".join(off) or proven)
        samples = recipe.batch_size * recipe.accumulation * recipe.ranks
        is_other_batch = samples != self.plan.preset.batch_size
        return Parity(title, exactness, [*report.checks, mechanisms], is_other_batch, report.losses)

    def _beside_one_rank(self, recipe: Recipe, steps: int) -> tuple[ParityReport, Trained]:
        """Ranks with a batch each must have the losses of one rank with all of their batches."""
        batch_size = recipe.batch_size * recipe.ranks
        child, plain = self.train(recipe.replace(ranks=1, batch_size=batch_size), steps)
        child.stop()
        trained = self.train(recipe, steps).trained
        rounding = 1e-4 if recipe.amp == "off" else 2e-2
        pairs = zip(trained.losses, plain.losses, strict=True)
        difference = max(abs(a - b) / max(abs(b), 1.0) for a, b in pairs)
        evidence = (
            f"{recipe.ranks} x {recipe.batch_size} and 1 x {batch_size}: at most {difference:.1g} apart"
        )
        if difference > rounding and trained.batch_norm:
            evidence += ": batch normalisation sees each rank's own batch (nn.SyncBatchNorm would see all)"
        losses = {"candidate": trained.losses, "float32": plain.losses, "float64": list[float]()}
        return ParityReport([Check("losses", difference <= rounding, evidence)], losses), trained


@contextlib.contextmanager
def _stopped_on_error(child: Conversation) -> Iterator[None]:
    try:
        yield
    except BaseException:
        child.stop()
        raise
