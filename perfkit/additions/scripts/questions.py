"""What a script can be asked at the end of a step: a method of `Questions`, which may want further steps."""

import atexit
import contextlib
import functools
import math
import os
import random
import statistics
import sys
import threading
import traceback
from collections.abc import Generator
from multiprocessing.connection import Connection
from typing import Any

import numpy
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils import data

from perfkit.additions.guard.outputs import Outputs, Write
from perfkit.additions.scripts import evidence, hooks, messages, run_account
from perfkit.additions.scripts.loaders import ARGUMENTS, Loaders, data_facts
from perfkit.additions.scripts.script import Callback, Script, ScriptStep
from perfkit.additions.scripts.training import Models, Updates
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.settings import Settings
from perfkit.additions.shared.tensors import tensors
from perfkit.errors import RunFailed, TrainingEnded, TrainingRaised
from perfkit.lookup import load
from perfkit.process import Answer, failures, zygote
from perfkit.recipe import Recipe, allowed, switches
from perfkit.show import units
from perfkit.worker import checks
from perfkit.worker.messages import Trained
from perfkit.worker.procedure import WINDOW, Procedure, Procedures

LIMIT = messages.limits("questions")


class Ended(Exception):
    """The script has come to its end while a question was answered."""


class Questions(Procedures, Callback):
    """Makes loaders, models and optimizers of this process report; answers from what they have shown."""

    def __init__(self, settings: Settings, files: Outputs) -> None:
        super().__init__(self._send, clock)
        self.subject = self._script = script = Script(settings, files)
        self.line = Connection(settings.line)  # closed after a crash, and in a forked process
        self._early: list[ScriptStep] = []  # the steps before the first question
        self._job: Procedure | None = None
        self._slices = 0
        try:
            hooks.check()
        except RunFailed as problem:
            self._send(problem)
            os._exit(1)
        self._program = settings.program  # it may be one of two that are compared
        random.seed(settings.seed)
        torch.manual_seed(settings.seed)
        numpy.random.seed(settings.seed)
        script.set_process()
        self.loaders, self._models = Loaders(script), Models(script)
        hooks.listen(self.loaders, "samples")
        self.inquiry, self.run_account = evidence.Inquiry(script), run_account.RunAccount(script)
        hooks.wrap("torch.save", functools.partial(_save, script))
        own = (self.loaders, self._models, Updates(script), self.inquiry, self.run_account)
        self.observers: dict[str, Callback] = {place: load(place)(script) for place in settings.observers}
        script.set_callbacks(script, *own, *self.observers.values(), self)
        hooks.around(sys, "excepthook", self._crashed)
        os.register_at_fork(after_in_child=self.line.close)
        if sys.platform == "linux":  # also while they are suspended
            zygote.die_with_parent()
            os.register_at_fork(after_in_child=_end_with_the_main_thread)
        atexit.register(self._ended)

    def train(self, loss_steps: int, warmup_s: float, warmup_steps: int = 1, **_: Any) -> Procedure:
        """`Trained`: first steps, whose losses are kept, then a warm-up, equally long on all sides."""
        script = self._script
        until = clock() + LIMIT.warmup_longer * warmup_s
        first = yield from self.take(loss_steps, "first steps", early=self._early)
        warm = yield from self.take(1, "warm-up", warmup_steps, lambda: clock() > until)
        self._step_s = statistics.median(warm.step_s[-WINDOW:])
        checks.reset_peak(script.device)
        backwards = round(len(first.plain) * script.batches_per_step)
        facts = {f"note {number}": text for number, text in enumerate(script.notes, 1)}
        if self.loaders.drawn[0]:
            facts["data"] = messages.RandomData.DRAWN
        elif script.loader is not None and (own := data_facts(script.loader, 0).generators):
            facts |= {"data": messages.RandomData.HELD, "generators": ", ".join(own)}
        return Trained(
            recipe=Recipe().replace(**allowed(self._settings())).to_dict(),
            facts={"step": script.step_in_words(), **facts},
            startup_s=self._startup_s,
            warmup=first.timed() + warm.timed(),
            losses=[float(loss) for loss in script.losses[:backwards]],
            mechanisms=checks.verify(script.view(), script.toggles),
            samples_per_step=script.samples_per_step,
            compile_counters=checks.compile_counters(),
        )

    def slice(self, samples: int, seconds: float) -> Procedure:
        """See `Procedures`; a step before it is looked at, as nothing is in those that are timed."""
        if not self.observers:
            return (yield from super().slice(samples, seconds))
        self._slices += 1
        if self.steps_for(samples, seconds) >= LIMIT.long or self._slices % LIMIT.long == 0:
            yield from self.take(1, "measuring")
        self._script.is_timed = True
        try:
            return (yield from super().slice(samples, seconds))
        finally:
            self._script.is_timed = False

    def reach(self, samples: int) -> Procedure:
        """Goes on until so many samples have been trained on in all; returns how many have."""
        steps = self._script.steps
        while steps.count * self._script.samples_per_step < samples:
            yield
        return steps.count * self._script.samples_per_step

    def describe(self) -> messages.ScriptFacts:
        script, loader = self._script, self._script.loader
        models = [getattr(model, "_orig_mod", model) for model in script.model]
        inner = [each.module if isinstance(each, DistributedDataParallel) else each for each in models]
        return messages.ScriptFacts(
            device=script.device.type,
            facts=checks.facts(script.device),
            startup_s=self._startup_s,
            step_s=self._early[-1].seconds,
            models=[type(model).__name__ for model in inner],
            parameters=sum(p.numel() for p in script.parameters()),
            optimizers=[type(optimizer).__name__ for optimizer in script.optimizers],
            has_fused=all("fused" in group for group in script.groups()),
            loader="" if loader is None else type(getattr(loader, "dataset", loader)).__name__,
            step_is=script.step_in_words(),
            samples_per_step=script.samples_per_step,
            convolves=any(isinstance(module, nn.modules.conv._ConvNd) for module in script.modules()),
            settings=self._settings(),
            refused=self._why_not(),
            saved_bytes=script.saved_bytes,
            state_bytes=_state_bytes(script),
            sites=[site for sites in script.sites.values() for site in sites],
            notes=[*script.notes, *script.files.notes],
        )

    def observe(self, steps: int, seconds: float = math.inf, limit_s: float = math.inf) -> Procedure:
        """`Observation` of plain steps: fewer if the script ends or they take long; others if none comes."""
        until, latest = clock() + seconds, clock() + limit_s

        def is_over() -> bool:
            taken = self.under_way
            return bool(taken.counted or taken.marks) and clock() > (until if taken.counted else latest)

        with self.run_account.counting():
            try:
                if LIMIT.many * self._early[-1].seconds < seconds:
                    yield from self.warm_up(min(LIMIT.warmup_s, seconds / 10))
                    steps = max(steps, math.ceil(LIMIT.least_s / self._step_s))
                known = -1
                while known < len(self._script.optimizers):  # one that shows up later makes steps longer
                    known = len(self._script.optimizers)
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
        """Goes on at the script's own speed, until so many steps or for so many seconds; whether it ended."""
        until = clock() + seconds
        with self.run_account.counting():
            try:
                while self._script.steps.count < steps and clock() < until:
                    yield
            except Ended:
                return True
        return False

    def account(self) -> messages.Account:
        return self.run_account.account(self._script.settings.started, self._script.steps.began_at)

    def _settings(self) -> dict[str, Any]:
        script = self._script
        unknown = {*ARGUMENTS} if script.loader is None else set()
        view = script.view()
        values = {name: getattr(view, name)()[0] for name in messages.SETTABLE if name not in unknown}
        return {name: value for name, value in values.items() if value is not None}

    def _why_not(self) -> dict[str, str]:
        script = self._script
        loader = script.loader
        why = messages.TEXTS["refused"]
        edits = messages.TEXTS["by_hand"]
        reasons = {name: f"needs the script's own code: {edit}" for name, edit in edits.items()}
        if script.device.type != "cuda":
            on_cuda = [name for name, switch in switches().items() if switch.needs == "cuda"]
            reasons |= dict.fromkeys(on_cuda, why["not_on_cuda"])
        if loader is None:
            reasons |= dict.fromkeys(ARGUMENTS, why["no_loader"])
        elif not isinstance(loader, data.DataLoader):
            library = type(loader).__module__.split(".")[0]
            reasons |= dict.fromkeys(ARGUMENTS, why["other_loader"].format(library=library))
        else:
            if type(loader.batch_sampler) is not data.BatchSampler:
                reasons["batch_size"] = why["batch_sampler"]
            is_split = self.loaders.asked_worker[0] or loader.worker_init_fn is not None
            if isinstance(loader.dataset, data.IterableDataset) and not (loader.num_workers or is_split):
                reasons["workers"] = why["not_split"]
        if not script.model:
            reasons |= dict.fromkeys(("amp", "channels_last", "compile"), why["no_model"])
        elif all(p.dim() != 4 for p in script.parameters()):
            reasons["channels_last"] = why["no_images"]
        if checks.facts(script.device).bf16 is False:
            reasons["amp"] = why["no_bf16"]
        if self._models.is_compiled:
            reasons["compile"] = why["compiled"]
        if not script.optimizers:
            reasons["optimizer_impl"] = why["no_optimizer"]
        elif any("foreach" not in group for group in script.groups()):
            name = type(script.optimizer).__name__
            reasons["optimizer_impl"] = why["one_implementation"].format(optimizer=name)
        return reasons

    def on_steps(self, steps: list[ScriptStep]) -> None:
        if self.line.closed:
            return
        with self._script.files.ignored():
            if self._job is None:
                checks.synchronize(self._script.device)  # the host is ahead of a GPU
                known_s = sum(step.seconds for step in steps[:-1])
                steps[-1].seconds = clock() - self._script.steps.since - known_s
                self._early = steps
                self.first_graphs = checks.compile_counters().graphs
                self._startup_s = self._script.steps.began_at - self._script.settings.started
                if safetensors := sys.modules.get("safetensors.torch"):
                    hooks.around(safetensors, "serialize_file", functools.partial(_save, self._script))
                self._job = self._answers()
                next(self._job)
                return
            for step in steps:
                if self.line.poll():  # nothing is asked meanwhile: the parent has closed its end
                    os._exit(0)  # no `finally`, `atexit` or checkpoint of the script runs any more
                self._job.send(step)

    def _answers(self) -> Procedure:
        while True:
            try:
                asked = self.line.recv()
            except (EOFError, OSError):
                os._exit(0)
            try:
                answer = self.answer(asked.name, asked.arguments)
                if isinstance(answer, Generator):
                    answer = yield from answer
                self._send(Answer(answer, asked.number))
            except Ended:
                pace = {"steps": self._script.steps.count, "each": units.duration(self._early[-1].seconds)}
                self._send(messages.failed("ended", TrainingEnded, program=self._program, **pace))
            except Exception as problem:
                traceback.print_exception(problem)
                self._send(messages.failed("inside", kind_of=type(problem).__name__, problem=problem))

    def _send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # a parent that has gone shows at the next question
            self.line.send(message)

    def _crashed(self, show: Any, kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        show(kind, problem, trace)
        if self.line.closed:
            return
        failure = failures.explain(problem)
        count = self._script.steps.count
        when = f"after {count} steps" if count else "before its second step"
        failure.what = f"{self._program} ended {when}: {failure.what}"
        if isinstance(problem, EOFError):
            failure.remedy = "No keyboard is there: redirect its standard input from a file"
        elif isinstance(failure, TrainingRaised):
            failure.remedy = f"Run it without {', '.join(self._script.toggles) or 'perfkit'} to compare"
        self._send(failure)
        self.line.close()

    def _ended(self) -> None:
        if self.line.closed:
            return
        if self._job is None:
            self._send(messages.failed("no_steps", program=self._program, backwards=self._script.backwards))
            return
        self._script.tell(Callback.on_end)
        while True:
            self._job.throw(Ended())


_MAIN_THREAD = threading.main_thread().ident


def _end_with_the_main_thread() -> None:
    """What the main thread forks ends with it; what another thread forks may outlive that thread."""
    if threading.get_ident() == _MAIN_THREAD:  # a child goes on as the thread that forked it
        zygote.die_with_parent()


def _save(script: Script, plain: Any, *args: Any, **kwargs: Any) -> Any:
    script.steps.now.marks.add("checkpoint")
    script.note_call("checkpoint")
    for value in (*args[1:], *kwargs.values()):
        if isinstance(value, str | os.PathLike):
            script.files.before(Write(os.fsdecode(value)))
    result = script.do("checkpoint", plain, *args, **kwargs)
    script.saved_bytes = max(script.saved_bytes, *map(_written, (*args[1:], *kwargs.values())))
    return result


def _written(target: Any) -> int:
    """Bytes of the file or the buffer that a checkpoint has gone to."""
    with contextlib.suppress(Exception):  # it may be any other argument
        return os.path.getsize(target) if isinstance(target, str | os.PathLike) else int(target.tell())
    return 0


def _state_bytes(script: Script) -> int:
    """Bytes of the weights and of the optimizers' state; 0 where other ranks may hold parts of them."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return 0
    of_optimizers = tensors([optimizer.state for optimizer in script.optimizers])
    held = [*script.parameters(), *script.model.buffers(), *of_optimizers]
    return sum(each.numel() * each.element_size() for each in held)
