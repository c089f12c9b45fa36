"""What a script can be asked: each method is a question, answered at once or by a procedure.

A procedure is a generator that is sent the script's steps (`worker.procedure`).
"""

import functools
import math
import operator
import os
import random
import statistics
import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec
import torch
from torch import nn

from perfkit.recipe import Recipe, allowed, switches
from perfkit.results.run import Mechanism
from perfkit.scripts.behaviour import Behaviour
from perfkit.scripts.loaders import ARGUMENTS, COPIES, Loaders
from perfkit.scripts.messages import EDITS, SETTABLE, Observation, ScriptFacts
from perfkit.scripts.models import Models
from perfkit.scripts.optimizers import Updates
from perfkit.scripts.outputs import clock
from perfkit.scripts.script import Script, Step, Unavailable, around
from perfkit.scripts.witness import Witness
from perfkit.worker import checks
from perfkit.worker.messages import Block, Trained
from perfkit.worker.procedure import HELD_FIRST, Job, Procedures, Steps, Taking

_ROUNDS, _MANY = 3, 40
"""What is compared takes turns, so that both see the same machine, if so many steps fit in the time."""
_WARMUP_S = 3.0


class Ended(Exception):
    """The script has come to its end while a question was answered."""


class Questions(Procedures):
    """Makes loaders, models and optimizers of this process report; answers from what they have shown."""

    def __init__(self, script: Script, report: Callable[[str], None]) -> None:
        super().__init__(report, clock)
        self.subject = self._script = script
        self._loaders, self._models, self._updates = Loaders(script), Models(script), Updates(script)
        self._early: list[Step] = []
        """The steps before the first question."""
        seed = script.settings["seed"]
        random.seed(seed)
        torch.manual_seed(seed)
        if numpy := sys.modules.get("numpy"):
            numpy.random.seed(seed)
        script.set_process()
        for part in (self._loaders, self._models, self._updates):
            part.patch()
            script.parts.append(part)
        around(torch, "save", functools.partial(_save, script))
        self._witness = Witness(script, self._models) if script.settings["witness"] else None
        script.parts += filter(None, (self._witness, self))

    def on_steps(self, steps: list[Step]) -> None:
        if not self._early:
            self._early = steps
            if safetensors := sys.modules.get("safetensors.torch"):
                around(safetensors, "serialize_file", functools.partial(_save, self._script))

    # ------------------------------------------------------------ questions

    def train(self, loss_steps: int, warmup_s: float, **_: Any) -> Job:
        """`Trained`: the first steps, whose losses are kept, then others until their time is steady.

        The warm-up takes `warmup_s` at most; 0 for a single step. A script has its own recipe and seed.
        """
        script = self._script
        first = yield from self.first_steps(self._early, loss_steps)
        warm = yield from self.warm_up(warmup_s) if warmup_s else self._for(1, 0.0)
        backwards = round(len(first.plain) * script.batches_per_step)
        facts = {"step": script.step_in_words()}
        return Trained(
            recipe=Recipe().replace(**allowed(self._settings())).to_dict(),
            facts=facts | {f"note {number}": text for number, text in enumerate(script.notes, 1)},
            startup_s=self._startup_s,
            first=first.block(),
            warm=warm.block(),
            losses=[float(loss) for loss in script.losses[:backwards]],
            mechanisms=self._mechanisms(),
            samples_per_step=script.samples_per_step,
            compile_counters=checks.compile_counters(),
            batch_norm=self._has(nn.modules.batchnorm._BatchNorm),
        )

    def warm_up(self, budget_s: float) -> Taking:
        """Steps until their time is steady; peak memory and recompilations count from here."""
        self.first_graphs = checks.compile_counters().graphs
        return super().warm_up(budget_s)

    @property
    def _startup_s(self) -> float:
        return max(0.0, self._script.steps.began_at - float(self._script.settings["started"]))

    def _has(self, layer: type[nn.Module]) -> bool:
        return any(isinstance(module, layer) for model in self._script.models for module in model.modules())

    # ------------------------------------------------------------ questions to a script

    def describe(self) -> ScriptFacts:
        """What trains, what is set, and what can be set from outside."""
        script, loader = self._script, self._script.loader
        groups = [group for optimizer in script.optimizers for group in optimizer.param_groups]
        script.sites.keep(self._loaders.site())
        return ScriptFacts(
            device=script.device.type,
            facts=checks.facts(script.device),
            startup_s=self._startup_s,
            step_s=self._early[-1].seconds,
            models=[type(getattr(model, "_orig_mod", model)).__name__ for model in script.models],
            parameters=sum(p.numel() for p in script.parameters()),
            optimizers=[type(optimizer).__name__ for optimizer in script.optimizers],
            has_fused=all("fused" in group for group in groups),
            loader="" if loader is None else type(getattr(loader, "dataset", loader)).__name__,
            step_is=script.step_in_words(),
            samples_per_step=script.samples_per_step,
            convolves=self._has(nn.modules.conv._ConvNd),
            random_data=self._loaders.random_data,
            settings=self._settings(),
            refused=self._why_not(),
            sites=script.sites.all(),
            notes=script.notes,
        )

    def behaviour(self) -> Behaviour:
        """What the steps have done until now."""
        if self._witness is None:
            raise Unavailable("what its steps do was not noted")
        return self._witness.behaviour()

    def observe(self, steps: int, seconds: float = math.inf) -> Job:
        """Plain steps (an `Observation`) and, in turn, as many on a held batch (a `Block`, or None).

        The third of the answer is how many times as fast those are under autocast to bfloat16, or None. There
        are fewer steps if the script ends before, or if they take longer than `seconds` in all.
        """
        until, step_s, ended = clock() + seconds, self._early[-1].seconds, False
        rounds = _ROUNDS if _MANY * step_s < seconds else 1
        parts, held, as_fast = list[Steps](), list[Block](), list[float]()
        try:
            if rounds > 1:
                yield from self.warm_up(min(_WARMUP_S, seconds / 10))
            for left in range(rounds, 0, -1):
                part_s = (until - clock()) / left / 3
                if rounds > 1:
                    yield from self.settle()
                parts.append((yield from self._for(math.ceil(steps / rounds), part_s)))
                fit = int(min(len(parts[-1].plain), part_s / step_s - HELD_FIRST))
                if self._script.loader is not None and fit > 0:
                    held.append((yield from self.ceiling(fit * self._script.samples_per_step)))
                    if rounds > 1 and self._may_autocast():
                        half_s = yield from self._in_16_bits(fit, part_s)
                        as_fast.append(held[-1].seconds / len(held[-1].step_s) / half_s)
        except Ended:
            last = self.under_way
            if not parts and not last.plain:
                raise
            last.seconds = sum(step.seconds for step in last.plain)
            parts, ended = parts or [last], True
        ceiling = functools.reduce(operator.add, held) if held else None
        return self._observation(parts, ended), ceiling, statistics.fmean(as_fast) if as_fast else None

    def syncs(self, steps: int) -> Job:
        """Copies and waits in some steps. On a CPU `.to(device)` stands for no copy from a GPU."""
        report = yield from super().syncs(steps)
        if self._script.device.type != "cpu":
            return report
        places = [place for place in report.places if place.call not in COPIES]
        return msgspec.structs.replace(report, places=places)

    def _may_autocast(self) -> bool:
        """Whether autocast to bfloat16 can be set for some steps only."""
        script, models = self._script, self._models
        in_float32 = {p.dtype for p in script.parameters()} == {torch.float32} and models.autocast() is None
        return in_float32 and not models.is_compiled and checks.facts(script.device).bf16 is not False

    def _in_16_bits(self, steps: int, seconds: float) -> Generator[None, Any, float]:
        """Seconds of a step on a held batch under autocast to bfloat16."""
        toggles = self._script.toggles
        toggles["amp"] = "bf16"
        try:
            with self._script.hold():
                yield from self._for(HELD_FIRST, seconds)
                return (yield from self._for(steps, seconds)).mean_s
        finally:
            self._models.leave_autocast()
            del toggles["amp"]

    def _for(self, steps: int, seconds: float) -> Taking:
        """Takes so many steps, fewer if they take longer, and at least one."""
        until = clock() + seconds
        return (yield from self.take(1, "measuring", steps, lambda: clock() > until))

    def _observation(self, parts: Sequence[Steps], ended: bool) -> Observation:
        steps = [step for part in parts for step in part.plain]
        outside: dict[str, tuple[int, float]] = {}
        for step in (step for part in parts for step in part.marked):
            name = " + ".join(sorted(step.marks))
            count, spent = outside.get(name, (0, 0.0))
            outside[name] = count + 1, spent + step.seconds
        on_cpu = self._script.device.type == "cpu"
        return Observation(
            block=functools.reduce(operator.add, (part.block() for part in parts)),
            tokens=sum(step.tokens for step in steps),
            optimizer_s=sum(step.updated for step in steps) if on_cpu else None,
            outside=outside,
            steps=self._script.steps.count,
            ended=ended,
        )

    # ------------------------------------------------------------ reading switches

    def _view(self) -> checks.View:
        script, models = self._script, self._models
        return checks.View(
            loader=script.loader,
            iterator=script.iterator,
            model=nn.ModuleList(script.models),
            optimizer=script.optimizers[-1] if script.optimizers else None,
            inputs=models.inputs,
            outputs=models.outputs,
            autocast=models.autocast(),
            set_to_none=self._updates.sets_to_none,
            copies=self._loaders.copies,
            graphs=checks.compile_counters(),
        )

    def _read(self, name: str, view: checks.View) -> checks.Reading:
        """The value of a switch, None if it cannot be read, and the evidence."""
        without_loader = view.loader is None and name in ARGUMENTS
        if without_loader or (name == "zero_grad_set_to_none" and view.set_to_none is None):
            return None, "there is nothing to read it from"
        if name == "compile_mode":  # the script's module is not the compiled one
            return self._script.toggles.get(name), "as it was asked for"
        return checks.READERS[name](view)

    def _settings(self) -> dict[str, Any]:
        """The switches as they are now, as far as they can be read."""
        view, optimizers = self._view(), self._script.optimizers
        values = {name: self._read(name, view)[0] for name in SETTABLE}
        batches, last = self._script.batches_per_step, self._early[-1]
        feeds_again = last.forward_samples > last.samples or isinstance(view.optimizer, torch.optim.LBFGS)
        if len(optimizers) == 1 and batches % 1 == 0 and not feeds_again:
            values["accumulation"] = int(batches) or 1
        return {name: value for name, value in values.items() if value is not None}

    def _mechanisms(self) -> list[Mechanism]:
        """The proof of each switch that was set from outside."""
        view, proofs = self._view(), []
        for name, wanted in self._script.toggles.items():
            value, evidence = self._read(name, view)
            refused = self._script.refused.get(name)
            ok = not refused and (value == wanted or checks.AS_IT_IS.get(name) == wanted)
            proofs.append(Mechanism(name, ok, refused or evidence))
        return proofs

    def _why_not(self) -> dict[str, str]:
        """Switches that cannot be set from outside in this script, with the reason."""
        reasons = {name: f"needs the script's own code: {edit}" for name, edit in EDITS.items()}
        if self._script.device.type != "cuda":
            on_cuda = [name for name, switch in switches().items() if switch.needs == "cuda"]
            reasons |= dict.fromkeys(on_cuda, "needs a CUDA device, and this script does not train on one")
        reasons |= self._loaders.why_not()
        return reasons | self._models.why_not() | self._updates.why_not() | self._script.refused


def _save(script: Script, plain: Any, *args: Any, **kwargs: Any) -> Any:
    """Torch and safetensors write checkpoints without Python's `open`; their second argument is the file."""
    script.steps.now.marks.add("checkpoint")
    file = args[1] if len(args) > 1 else kwargs.get("f", kwargs.get("filename"))
    if isinstance(file, str | os.PathLike):
        script.outputs.before(os.fsdecode(file))
    return plain(*args, **kwargs)
