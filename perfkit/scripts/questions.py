"""What a script can be asked: each public method is a question, answered at once or by a procedure.

A procedure is a generator that is sent the script's steps (`worker.procedure`).
"""

import contextlib
import functools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from perfkit.recipe import Recipe, allowed
from perfkit.results.run import Mechanism
from perfkit.scripts.behaviour import Behaviour
from perfkit.scripts.loaders import ARGUMENTS, Loaders
from perfkit.scripts.messages import EDITS, SETTABLE, Observation, ScriptFacts
from perfkit.scripts.models import DTYPES, Models
from perfkit.scripts.optimizers import Gradients, Optimizers
from perfkit.scripts.outputs import Outputs, clock
from perfkit.scripts.script import Script, Step
from perfkit.scripts.witness import Witness
from perfkit.worker import checks, device
from perfkit.worker.messages import Block, Peak, Progress, SyncReport, Trained
from perfkit.worker.procedure import HELD_FIRST, Job, Procedure, Steps, Taking

_ROUNDS, _MANY = 3, 40
"""What is compared takes turns, so that both see the same machine, if so many steps fit in the time."""
_WARMUP_S, _TRIED = 3.0, 20


class Unavailable(Exception):
    """A question that this script cannot answer; the script goes on."""


class Ended(Exception):
    """The script has come to its end while a question was answered."""


class Questions:
    """The parts that watch the script, and what they can tell."""

    def __init__(self, settings: dict[str, Any], outputs: Outputs) -> None:
        self.script = Script(settings, outputs, self.at_steps)
        self.loaders = Loaders(self.script)
        self.models = Models(
            self.script, self.loaders, before_first=lambda: apply_global(self.script.toggles)
        )
        self.gradients = Gradients(self.script, self.loaders, self.models)
        self.optimizers = Optimizers(self.script, self.models, self.gradients)
        self.parts = self.loaders, self.models, self.gradients, self.optimizers
        self.witness = Witness(self.script, self.parts) if settings["witness"] else None
        self.early: list[Step] = []
        """The steps before the first question."""
        self._procedure = Procedure(self, self.tell, clock)
        self._first_graphs = 0

    def at_steps(self, steps: list[Step]) -> None:
        raise NotImplementedError

    def tell(self, progress: Progress) -> None:
        raise NotImplementedError

    # ------------------------------------------------------------ what a procedure must know

    @property
    def device(self) -> torch.device:
        return self.models.device()

    @property
    def iterator(self) -> Any:
        return self.loaders.iterator

    @property
    def samples_per_step(self) -> int:
        return self.script.usual_samples

    @property
    def batches_per_step(self) -> float:
        return self.gradients.count / max(1, self.script.steps.count)

    @property
    def workers(self) -> int:
        return getattr(self.loaders.training, "num_workers", 0) or 0

    @property
    def prefetched(self) -> int:
        return self.workers * (getattr(self.loaders.training, "prefetch_factor", 0) or 0)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """The script gets the same batch again and again."""
        if self.loaders.training is None:
            raise Unavailable("the script has no DataLoader, whose batches could be held")
        self.loaders.held_on = self.device
        try:
            yield
        finally:
            self.loaders.release()

    @contextlib.contextmanager
    def phases(self) -> Iterator[None]:
        """Forward and backward get names in the profile."""
        self.script.profiling = True
        try:
            yield
        finally:
            self.script.profiling = False

    def check(self, steps: Sequence[Any]) -> None:
        """A script may train to any loss."""

    def note(self, text: str) -> None:
        self.script.note(text)

    # ------------------------------------------------------------ questions to every training

    def train(self, loss_steps: int, warmup_s: float, **_: Any) -> Job:
        """`Trained`: the first steps, whose losses are kept, then others until their time is steady.

        The warm-up takes `warmup_s` at most; 0 for a single step. A script has its own recipe and seed.
        """
        script = self.script
        first = yield from self._procedure.first_steps(self.early, loss_steps)
        warm = yield from self._warm_up(warmup_s) if warmup_s else self._for(1, 0.0)
        backwards = round(len(first.plain) * self.batches_per_step)
        facts = {"step": script.step_in_words()}
        return Trained(
            recipe=Recipe().replace(**allowed(self._settings())).to_dict(),
            facts=facts | {f"note {number}": text for number, text in enumerate(script.notes, 1)},
            startup_s=self._startup_s,
            first=first.block(),
            warm=warm.block(),
            losses=[float(loss) for loss in self.gradients.losses[:backwards]],
            mechanisms=self._mechanisms(),
            batch_bytes_per_sample=self.loaders.bytes_per_sample,
            samples_per_step=script.usual_samples,
            compile_counters=device.compile_counters(),
            batch_norm=self._has(nn.modules.batchnorm._BatchNorm),
        )

    def _warm_up(self, seconds: float) -> Taking:
        """Steps until their time is steady; peak memory and recompilations count from here."""
        self._first_graphs = device.compile_counters().graphs
        warm = yield from self._procedure.warm_up(seconds)
        device.reset_peak(self.device)
        return warm

    @property
    def _startup_s(self) -> float:
        return max(0.0, (self.script.steps.began_at or 0.0) - float(self.script.settings["started"]))

    def _has(self, layer: type[nn.Module]) -> bool:
        return any(isinstance(module, layer) for module in self.models.modules())

    def block(self, samples: int, seconds: float = 0.0, settle: bool = True, queues: int = 1) -> Job:
        return (yield from self._procedure.block(samples, seconds, settle, queues)).block()

    def ceiling(self, samples: int) -> Job:
        """Steps on one batch that is already on the device, without the loader."""
        return (yield from self._procedure.held(samples)).block()

    def peak(self) -> Peak:
        """Peak memory since the warm-up, and recompilations since the first steps."""
        graphs = device.compile_counters().graphs - self._first_graphs
        return Peak(*device.peak_bytes(self.device), graphs)

    def syncs(self, steps: int) -> Job:
        """Copies and waits between host and device in some steps."""
        from perfkit.worker.syncs import detect_syncs

        with detect_syncs() as syncs:
            for _ in range(steps):
                yield
        return SyncReport(syncs.sorted(), steps, str(self.device))

    def profile(self, **settings: Any) -> Job:
        return self._procedure.profile(**settings)

    # ------------------------------------------------------------ questions to a script

    def describe(self) -> ScriptFacts:
        """What trains, what is set, and what can be set from outside."""
        script, loader = self.script, self.loaders.training
        script.sites.keep(self.loaders.site())
        return ScriptFacts(
            device=self.device.type,
            facts=device.facts(self.device),
            startup_s=self._startup_s,
            step_s=self.early[-1].seconds,
            models=[type(getattr(model, "_orig_mod", model)).__name__ for model in self.models.called],
            parameters=sum(p.numel() for p in self.models.parameters()),
            optimizers=[type(optimizer).__name__ for optimizer in self.optimizers.stepped],
            has_fused=all(
                "fused" in group for each in self.optimizers.stepped for group in each.param_groups
            ),
            loader="" if loader is None else type(getattr(loader, "dataset", loader)).__name__,
            step_is=script.step_in_words(),
            backwards_per_step=self.batches_per_step,
            samples_per_step=script.usual_samples,
            tokens_per_step=script.usual_tokens,
            convolves=self._has(nn.modules.conv._ConvNd),
            random_data=self.loaders.random_data,
            settings=self._settings(),
            refused=why_not(script, self.loaders, self.models, self.optimizers),
            sites=script.sites.all(),
            notes=script.notes,
        )

    def behaviour(self) -> Behaviour:
        """What the steps have done until now."""
        if self.witness is None:
            raise Unavailable("what its steps do was not noted")
        return self.witness.behaviour()

    def observe(self, steps: int, seconds: float = math.inf) -> Job:
        """Plain steps (an `Observation`) and, in turn, as many on a held batch (a `Block`, or None).

        There are fewer of them if the script ends before, or if they take longer than `seconds` in all.
        """
        until, step_s, ended = clock() + seconds, self.early[-1].seconds, False
        rounds = _ROUNDS if _MANY * step_s < seconds else 1
        parts, held = list[Steps](), list[Block]()
        try:
            if rounds > 1:
                yield from self._warm_up(min(_WARMUP_S, seconds / 10))
            for left in range(rounds, 0, -1):
                if rounds > 1:
                    yield from self._procedure.settle()
                parts.append((yield from self._for(math.ceil(steps / rounds), (until - clock()) / left / 2)))
                fit = int(min(len(parts[-1].plain), (until - clock()) / left / step_s - HELD_FIRST))
                if self.loaders.training is not None and fit > 0:
                    samples = fit * self.samples_per_step
                    held.append((yield from self._procedure.held(samples)).block())
        except Ended:
            last = self._procedure.under_way
            if not parts and not last.plain:
                raise
            last.seconds = sum(step.seconds for step in last.plain)
            parts, ended = parts or [last], True
        return self._observation(parts, ended), functools.reduce(operator.add, held) if held else None

    def _for(self, steps: int, seconds: float) -> Taking:
        """Takes so many steps, fewer if they take longer, and at least one."""
        until = clock() + seconds
        return (yield from self._procedure.take(1, "measuring", steps, lambda: clock() > until))

    def _observation(self, parts: Sequence[Steps], ended: bool) -> Observation:
        steps = [step for part in parts for step in part.plain]
        outside: dict[str, tuple[int, float]] = {}
        for step in (step for part in parts for step in part.all if step not in part.plain):
            name = " + ".join(sorted(step.marks))
            count, spent = outside.get(name, (0, 0.0))
            outside[name] = count + 1, spent + step.seconds
        return Observation(
            block=functools.reduce(operator.add, (part.block() for part in parts)),
            tokens=sum(step.tokens for step in steps),
            optimizer_s=sum(step.updated for step in steps) if self.device.type == "cpu" else None,
            outside=outside,
            steps=self.script.steps.count,
            ended=ended,
        )

    def try_amp(self, seconds: float) -> Job:
        """How many times as fast steps on a held batch are under autocast to bfloat16; both in turn."""
        toggles, until, plain_s, half_s = self.script.toggles, clock() + seconds, 0.0, 0.0
        if self.models.is_compiled or {p.dtype for p in self.models.parameters()} != {torch.float32}:
            raise Unavailable("autocast cannot be set for some steps only")
        part_s = seconds / _ROUNDS / 2
        with self.hold():
            yield from self._for(HELD_FIRST, part_s)
            for _ in range(_ROUNDS):
                plain_s += (yield from self._for(_TRIED, part_s)).mean_s
                toggles["amp"] = "bf16"
                try:
                    yield from self._for(1, 0.0)
                    half_s += (yield from self._for(_TRIED, part_s)).mean_s
                finally:
                    self.models.leave_autocast()
                    del toggles["amp"]
                if clock() > until:
                    break
        return plain_s / half_s

    # ------------------------------------------------------------ reading switches

    def _view(self) -> checks.View:
        models, optimizers = self.models, self.optimizers
        return checks.View(
            self.device,
            loader=self.loaders.training,
            iterator=self.loaders.iterator,
            model=nn.ModuleList(models.called),
            optimizer=optimizers.stepped[-1] if optimizers.stepped else None,
            inputs=models.inputs,
            outputs=models.outputs,
            autocast=DTYPES.get(self.script.wants("amp"), models.autocast_dtype),
            set_to_none=optimizers.sets_to_none,
            copies=self.loaders.copies,
            graphs=device.compile_counters(),
        )

    def _read(self, name: str, view: checks.View) -> checks.Reading:
        """The value of a switch, None if it cannot be read, and the evidence."""
        without_loader = self.loaders.training is None and name in ARGUMENTS
        if without_loader or (name == "zero_grad_set_to_none" and view.set_to_none is None):
            return None, "there is nothing to read it from"
        if name == "compile_mode":  # the script's module is not the compiled one
            return self.script.toggles.get(name), "as it was asked for"
        return checks.READERS[name](view)

    def _settings(self) -> dict[str, Any]:
        """The switches as they are now, as far as they can be read."""
        view = self._view()
        values = {name: self._read(name, view)[0] for name in SETTABLE}
        evaluates_again = any(isinstance(each, torch.optim.LBFGS) for each in self.optimizers.stepped)
        if len(self.optimizers.stepped) == 1 and self.batches_per_step % 1 == 0 and not evaluates_again:
            values["accumulation"] = int(self.batches_per_step) or 1
        return {name: value for name, value in values.items() if value is not None}

    def _mechanisms(self) -> list[Mechanism]:
        """The proof of each switch that was set from outside."""
        view, proofs = self._view(), []
        for name, wanted in self.script.toggles.items():
            value, evidence = self._read(name, view)
            refused = self.script.refused.get(name)
            ok = not refused and (value == wanted or (name == "cpu_threads" and not wanted))
            proofs.append(Mechanism(name, ok, refused or evidence))
        return proofs


# ---------------------------------------------------------------- switches of the process

_ON_CUDA = {
    "pin_memory": "pinned memory speeds up copies to a GPU",
    "non_blocking": "only copies to a GPU can go on in the background",
    "fp32_precision": "TF32 is a number format of CUDA devices",
    "cudnn_benchmark": "cuDNN runs on CUDA devices",
}


def apply_global(toggles: dict[str, Any]) -> None:
    """Settings of the process; called again before the first step, as the script may have set them."""
    if toggles.get("cpu_threads"):
        torch.set_num_threads(toggles["cpu_threads"])
    if toggles.get("fp32_precision", "default") != "default":
        for part in (torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
            part.fp32_precision = toggles["fp32_precision"]
    if "cudnn_benchmark" in toggles:
        torch.backends.cudnn.benchmark = toggles["cudnn_benchmark"]


def patch_copies(script: Script, loaders: Loaders) -> None:
    """Sees where batches are copied; with `non_blocking` set, those from pinned memory do not wait."""
    tensor: Any = torch.Tensor

    def patched(name: str, plain: Callable[..., Any]) -> Callable[..., torch.Tensor]:
        def copy(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if loaders.is_batch(self):
                loaders.copies.append(kwargs)
                script.sites.note("copy")
            if script.toggles.get("non_blocking") and self.device.type == "cpu" and self.is_pinned():
                kwargs = {"non_blocking": True, **kwargs}
            return plain(self, *args, **kwargs)

        return copy

    for name in ("to", "cuda"):
        setattr(tensor, name, patched(name, getattr(tensor, name)))


def why_not(script: Script, loaders: Loaders, models: Models, optimizers: Optimizers) -> dict[str, str]:
    """Switches that cannot be set from outside in this script, with the reason."""
    reasons = {name: f"needs the script's own code: {edit}" for name, edit in EDITS.items()}
    reasons |= loaders.why_not()
    if models.device().type != "cuda":
        reasons |= {name: f"{reason}; this script trains on a CPU" for name, reason in _ON_CUDA.items()}
    return reasons | models.why_not() | optimizers.why_not() | script.refused
