"""Questions to a script, answered at the ends of its steps; `listen` makes a script's process answer."""

import atexit
import contextlib
import functools
import math
import os
import random
import statistics
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

from perfkit.additions.guard.outputs import Outputs, Write
from perfkit.additions.scripts import hooks, messages
from perfkit.additions.scripts.evidence import Inquiry
from perfkit.additions.scripts.loaders import ARGUMENTS, Loaders, data_facts
from perfkit.additions.scripts.marks import MarkedProcedures
from perfkit.additions.scripts.run_account import RunAccount
from perfkit.additions.scripts.script import Callback, Script, ScriptStep
from perfkit.additions.scripts.training import Models, Updates
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.settings import Settings
from perfkit.additions.shared.tensors import tensors
from perfkit.errors import RunFailed, TrainingEnded, TrainingRaised
from perfkit.lookup import load
from perfkit.process import Answer, Question, failures, zygote
from perfkit.recipe import Recipe, allowed, switches
from perfkit.show import units
from perfkit.worker import checks
from perfkit.worker.messages import TrainingReport
from perfkit.worker.procedure import WINDOW, Procedure

LIMIT = messages.limits("questions")


class Ended(Exception):
    """The script has ended while a question was being answered."""


@dataclass(eq=False)
class Questions(MarkedProcedures):
    """The questions that a script answers, from what its callbacks have recorded."""

    subject: Script
    loaders: Loaders
    models: Models
    inquiry: Inquiry
    run_account: RunAccount
    observers: Mapping[str, Callback]  # by `module:name`
    report: Callable[[str], None]
    early: list[ScriptStep] = field(default_factory=list)  # the steps before the first question
    _startup_s = 0.0
    _slices = 0

    def __post_init__(self) -> None:
        super().__init__(self.report, clock)

    def begin(self, steps: list[ScriptStep]) -> None:
        """Records the first steps, before any question."""
        checks.synchronize(self.subject.device)  # the host is ahead of a GPU
        known_s = sum(step.seconds for step in steps[:-1])
        steps[-1].seconds = clock() - self.subject.steps.since - known_s
        self.early = steps
        self.first_graphs = checks.compile_counters().graphs
        self._startup_s = self.subject.steps.began_at - self.subject.settings.started

    def train(self, loss_steps: int, warmup_s: float, warmup_steps: int = 1, **_: Any) -> Procedure:
        """`TrainingReport`: first steps, whose losses are kept, then a warm-up, equally long on all sides."""
        script = self.subject
        deadline = clock() + LIMIT.warmup_longer * warmup_s
        first = yield from self.take(loss_steps, "first steps", early=self.early)
        warm = yield from self.take(1, "warm-up", warmup_steps, lambda: clock() > deadline)
        self._step_s = statistics.median(warm.step_s[-WINDOW:])
        checks.reset_peak(script.device)
        backwards = round(len(first.steps) * script.updates.backwards / max(1, script.steps.count))
        facts = {f"note {number}": text for number, text in enumerate(script.notes, 1)}
        if self.loaders.drawn[0]:
            facts["data"] = messages.RandomData.DRAWN
        elif script.loader is not None and (generators := data_facts(script.loader, 0).generators):
            facts |= {"data": messages.RandomData.HELD, "generators": ", ".join(generators)}
        return TrainingReport(
            recipe=Recipe().replace(**allowed(self._settings())).to_dict(),
            facts={"step": script.step_in_words(), **facts},
            startup_s=self._startup_s,
            warmup=first.timed() + warm.timed(),
            losses=[float(loss) for loss in script.updates.losses[:backwards]],
            mechanisms=checks.verify(script.view(), script.toggles),
            samples_per_step=script.samples_per_step,
            compile_counters=checks.compile_counters(),
        )

    def slice(self, samples: int, seconds: float) -> Procedure:
        """See `Procedures`. An untimed step comes before it, which observers may look at."""
        if not self.observers:
            return (yield from super().slice(samples, seconds))
        self._slices += 1
        if self.steps_for(samples, seconds) >= LIMIT.long or self._slices % LIMIT.long == 0:
            yield from self.take(1, "measuring")
        self.subject.is_timed = True
        try:
            return (yield from super().slice(samples, seconds))
        finally:
            self.subject.is_timed = False

    def reach(self, samples: int) -> Procedure:
        """Goes on until the script has trained on so many samples in total; returns that total."""
        steps = self.subject.steps
        while steps.count * self.subject.samples_per_step < samples:
            yield
        return steps.count * self.subject.samples_per_step

    def describe(self) -> messages.ScriptFacts:
        script, loader = self.subject, self.subject.loader
        models = [getattr(model, "_orig_mod", model) for model in script.model]
        inner = [model.module if isinstance(model, DistributedDataParallel) else model for model in models]
        return messages.ScriptFacts(
            device=script.device.type,
            facts=checks.facts(script.device),
            startup_s=self._startup_s,
            step_s=self.early[-1].seconds,
            models=[type(model).__name__ for model in inner],
            parameters=sum(p.numel() for p in script.parameters()),
            optimizers=[type(optimizer).__name__ for optimizer in script.updates.optimizers],
            has_fused=all("fused" in group for group in script.groups()),
            loader="" if loader is None else type(getattr(loader, "dataset", loader)).__name__,
            step_is=script.step_in_words(),
            samples_per_step=script.samples_per_step,
            convolves=any(isinstance(module, nn.modules.conv._ConvNd) for module in script.modules()),
            settings=self._settings(),
            refused=self._refusals(),
            saved_bytes=script.saved_bytes,
            state_bytes=_state_bytes(script),
            sites=[site for sites in script.calls.sites.values() for site in sites],
            notes=[*script.notes, *script.files.notes],
        )

    def observe(self, steps: int, seconds: float = math.inf, limit_s: float = math.inf) -> Procedure:
        """`Observation` of plain steps: fewer if the script ends or is slow; marked ones if none is plain."""
        plain_until, marked_until = clock() + seconds, clock() + limit_s

        def is_over() -> bool:
            taken = self.under_way
            until = plain_until if taken.counted else marked_until
            return bool(taken.counted or taken.marks) and clock() > until

        with self.run_account.counting():
            try:
                if LIMIT.many * self.early[-1].seconds < seconds:
                    yield from self.warm_up(min(LIMIT.warmup_s, seconds / 10))
                    steps = max(steps, math.ceil(LIMIT.least_s / self._step_s))
                seen = self.subject.updates
                count = -1
                while count < len(seen.optimizers):  # one that is added later makes steps longer
                    count = len(seen.optimizers)
                    yield from self.take(0, "measuring", steps, is_over)
                if not self.under_way.counted:
                    self.count_marked()
            except Ended:
                if not self.under_way.counted:
                    raise
                self.under_way.read_times()
                return messages.Observation(block=self.under_way.timed(), ended=True)
        return messages.Observation(block=self.under_way.timed())

    def run_on(self, steps: float = math.inf, seconds: float = math.inf) -> Procedure:
        """Goes on at the script's own speed, to a step or for some seconds; returns whether it ended."""
        deadline = clock() + seconds
        with self.run_account.counting():
            try:
                while self.subject.steps.count < steps and clock() < deadline:
                    yield
            except Ended:
                return True
        return False

    def account(self) -> messages.Account:
        return self.run_account.account(self.subject.settings.started, self.subject.steps.began_at)

    def _settings(self) -> dict[str, Any]:
        script = self.subject
        missing = {*ARGUMENTS} if script.loader is None else set()
        view = script.view()
        values = {name: getattr(view, name)()[0] for name in messages.SETTABLE if name not in missing}
        return {name: value for name, value in values.items() if value is not None}

    def _refusals(self) -> dict[str, str]:
        script = self.subject
        loader = script.loader
        texts = messages.TEXTS["refused"]
        edits = messages.TEXTS["by_hand"]
        reasons = {name: f"needs the script's own code: {edit}" for name, edit in edits.items()}
        if script.device.type != "cuda":
            on_cuda = [name for name, switch in switches().items() if switch.needs == "cuda"]
            reasons |= dict.fromkeys(on_cuda, texts["not_on_cuda"])
        if loader is None:
            reasons |= dict.fromkeys(ARGUMENTS, texts["no_loader"])
        elif not isinstance(loader, data.DataLoader):
            library = type(loader).__module__.split(".")[0]
            reasons |= dict.fromkeys(ARGUMENTS, texts["other_loader"].format(library=library))
        else:
            if type(loader.batch_sampler) is not data.BatchSampler:
                reasons["batch_size"] = texts["batch_sampler"]
            is_split = self.loaders.asked_worker[0] or loader.worker_init_fn is not None
            if isinstance(loader.dataset, data.IterableDataset) and not (loader.num_workers or is_split):
                reasons["workers"] = texts["not_split"]
        if not script.model:
            reasons |= dict.fromkeys(("amp", "channels_last", "compile"), texts["no_model"])
        elif all(p.dim() != 4 for p in script.parameters()):
            reasons["channels_last"] = texts["no_images"]
        if checks.facts(script.device).bf16 is False:
            reasons["amp"] = texts["no_bf16"]
        if self.models.is_compiled:
            reasons["compile"] = texts["compiled"]
        if not script.updates.optimizers:
            reasons["optimizer_impl"] = texts["no_optimizer"]
        elif any("foreach" not in group for group in script.groups()):
            name = type(script.updates.newest).__name__
            reasons["optimizer_impl"] = texts["one_implementation"].format(optimizer=name)
        return reasons


@dataclass(eq=False)
class ParentConnection:
    """The connection to the parent; processes that the script forks have none."""

    connection: Connection | None = None

    def send(self, message: Any) -> None:
        if self.connection:
            with contextlib.suppress(OSError):  # `questions` ends once the parent is gone
                self.connection.send(message)

    def questions(self) -> Iterator[Question]:
        """Waits for questions, until the parent closes its end."""
        with contextlib.suppress(EOFError, OSError):
            while self.connection:
                yield self.connection.recv()

    def close(self) -> None:
        if self.connection:
            self.connection.close()
        self.connection = None


class Answering(Callback):
    """Answers the questions of a line at the ends of steps; the script waits meanwhile."""

    def __init__(self, questions: Questions, line: ParentConnection) -> None:
        self._script = questions.subject
        self._program = self._script.settings.program
        self._questions = questions
        self._line = line
        self._answers: Procedure | None = None  # from the first steps on

    def on_steps(self, steps: list[ScriptStep]) -> None:
        if self._line.connection is None:
            return
        with self._script.files.ignored():
            if self._answers is None:
                self._questions.begin(steps)
                _note_safetensors(self._script)
                self._answers = self._answer_all()
                self._resume(None)
                return
            for step in steps:
                if self._line.connection.poll():  # no question comes meanwhile: the parent has closed its end
                    os._exit(0)
                self._resume(step)

    def _resume(self, step: ScriptStep | None) -> None:
        """Resumes answering. Ends this process if the parent has closed its end of the line."""
        assert self._answers
        try:
            self._answers.send(step)
        except StopIteration:
            os._exit(0)  # no `finally`, `atexit` or checkpoint of the script runs any more

    def end(self) -> None:
        """Ends answering when the script has ended: a question that needs steps gets a failure."""
        if self._line.connection is None:
            return
        if self._answers is None:
            backwards = self._script.updates.backwards
            self._line.send(messages.failed("no_steps", program=self._program, backwards=backwards))
            return
        self._script.tell(Callback.on_end)
        with contextlib.suppress(StopIteration):  # the parent has closed its end
            while True:
                self._answers.throw(Ended())
        os._exit(0)

    def _answer_all(self) -> Procedure:
        """Answers questions until the parent closes its end; an answer may take steps."""
        for question in self._line.questions():
            try:
                answer = self._questions.answer(question.name, question.arguments)
                if isinstance(answer, Generator):
                    answer = yield from answer
                self._line.send(Answer(answer, question.number))
            except Ended:
                step_time = units.duration(self._questions.early[-1].seconds)
                pace = {"steps": self._script.steps.count, "each": step_time}
                self._line.send(messages.failed("ended", TrainingEnded, program=self._program, **pace))
            except Exception as problem:
                self._line.send(messages.failed_inside(problem))

    def crashed(self, show: Any, kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        """Sends the parent an exception of the script; `show` is Python's own `excepthook`."""
        show(kind, problem, trace)
        if self._line.connection is None:
            return
        failure = failures.explain(problem)
        count = self._script.steps.count
        when = f"after {count} steps" if count else "before its second step"
        failure.what = f"{self._program} ended {when}: {failure.what}"
        if isinstance(problem, EOFError):
            failure.remedy = "No keyboard is there: redirect its standard input from a file"
        elif isinstance(failure, TrainingRaised):
            failure.remedy = f"Run it without {', '.join(self._script.toggles) or 'perfkit'} to compare"
        self._line.send(failure)
        self._line.close()


def listen(settings: Settings, files: Outputs, line: ParentConnection | None = None) -> Questions:
    """Makes this process answer questions at the ends of its steps; runs once torch is imported."""
    line = line or ParentConnection(Connection(settings.line))
    try:
        hooks.check()
    except RunFailed as problem:
        line.send(problem)
        os._exit(1)
    script = Script(settings, files)
    random.seed(settings.seed)
    torch.manual_seed(settings.seed)
    numpy.random.seed(settings.seed)
    script.set_process()
    questions = _observed(script, line)
    answering = Answering(questions, line)
    script.set_callbacks(*script.callbacks, answering)
    hooks.around(sys, "excepthook", answering.crashed)
    os.register_at_fork(after_in_child=line.close)
    if sys.platform == "linux":  # forks end with their parent even while they are suspended
        zygote.die_with_parent()
        os.register_at_fork(after_in_child=_end_with_the_main_thread)
    atexit.register(answering.end)
    return questions


def _observed(script: Script, line: ParentConnection) -> Questions:
    """Observes the loaders, models and optimizers of this process, and returns the questions about them."""
    loaders, models = Loaders(script), Models(script)
    hooks.listen(loaders, "samples")
    inquiry, account = Inquiry(script), RunAccount(script)
    hooks.wrap("torch.save", functools.partial(_save, script))
    updates = Updates(script)
    observers = {place: load(place)(script) for place in script.settings.observers}
    script.set_callbacks(script, loaders, models, updates, inquiry, account, *observers.values())
    return Questions(script, loaders, models, inquiry, account, observers, line.send)


_MAIN_THREAD = threading.main_thread().ident


def _end_with_the_main_thread() -> None:
    """Ends a fork of the main thread with its parent; a fork of another thread may outlive that thread."""
    if threading.get_ident() == _MAIN_THREAD:  # a fork continues the thread that forked it
        zygote.die_with_parent()


def _note_safetensors(script: Script) -> None:
    if safetensors := sys.modules.get("safetensors.torch"):
        hooks.around(safetensors, "serialize_file", functools.partial(_save, script))


def _save(script: Script, plain: Any, *args: Any, **kwargs: Any) -> Any:
    script.steps.now.marks.add("checkpoint")
    script.calls.note("checkpoint")
    for value in (*args[1:], *kwargs.values()):
        if isinstance(value, str | os.PathLike):
            script.files.before(Write(os.fsdecode(value)))
    result = script.parts.do("checkpoint", plain, *args, **kwargs)
    script.saved_bytes = max(script.saved_bytes, *map(_written, (*args[1:], *kwargs.values())))
    return result


def _written(target: Any) -> int:
    """The bytes of the file or the buffer in which a checkpoint was saved."""
    with contextlib.suppress(Exception):  # `target` may be any other argument
        return os.path.getsize(target) if isinstance(target, str | os.PathLike) else int(target.tell())
    return 0


def _state_bytes(script: Script) -> int:
    """The bytes of the weights and the optimizers' state; 0 where other ranks may hold parts of them."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return 0
    states = tensors([optimizer.state for optimizer in script.updates.optimizers])
    values = [*script.parameters(), *script.model.buffers(), *states]
    return sum(value.numel() * value.element_size() for value in values)
