"""What a script can be asked: each public method is a question, answered at once or by a procedure.

A procedure is a generator that is sent the script's steps (`worker.procedure`).
"""

import contextlib
import resource
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from perfkit.recipe import Recipe, allowed
from perfkit.results.run import Mechanism
from perfkit.scripts.behaviour import Behaviour
from perfkit.scripts.loaders import ARGUMENTS, Loaders
from perfkit.scripts.messages import EDITS, SETTABLE, Observation
from perfkit.scripts.models import DTYPES, Models
from perfkit.scripts.optimizers import Gradients, Optimizers
from perfkit.scripts.outputs import Outputs, clock
from perfkit.scripts.script import Script, Step
from perfkit.scripts.witness import Witness
from perfkit.worker import checks, device
from perfkit.worker.messages import Peak, Progress, SyncReport, Trained
from perfkit.worker.procedure import Job, Procedure


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
        self.optimizers = Optimizers(self.script, self.models)
        parts = self.loaders, self.models, self.gradients, self.optimizers
        self.witness = Witness(self.script, *parts)
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
        """`Trained`: the first steps, then others until their time is steady.

        Args:
            loss_steps: first steps, whose losses are kept.
            warmup_s: the most that the warm-up may take.
            _: recipe and seed of a training that perfkit builds; a script has its own.
        """
        script = self.script
        first = yield from self._procedure.first_steps(self.early, loss_steps)
        self._first_graphs = device.compile_counters().graphs
        warm = yield from self._procedure.warm_up(warmup_s)
        device.reset_peak(self.device)
        backwards = round(len(first.plain) * self.batches_per_step)
        kinds = nn.modules.batchnorm._BatchNorm
        facts = {"step": script.step_in_words()}
        return Trained(
            recipe=Recipe().replace(**allowed(self._settings())).to_dict(),
            facts=facts | {f"note {number}": text for number, text in enumerate(script.notes, 1)},
            startup_s=max(0.0, (script.steps.began_at or 0.0) - script.settings["started"]),
            first=first.block(),
            warm=warm.block(),
            losses=[float(loss) for loss in self.gradients.losses[:backwards]],
            mechanisms=self._mechanisms(),
            batch_bytes_per_sample=self.loaders.bytes_per_sample,
            samples_per_step=script.usual_samples,
            compile_counters=device.compile_counters(),
            batch_norm=any(isinstance(module, kinds) for module in self.models.modules()),
        )

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

    def describe(self) -> dict[str, Any]:
        """Fields of `messages.ScriptFacts`."""
        script, loader = self.script, self.loaders.training
        script.sites.keep(self.loaders.site())
        convolutions = nn.modules.conv._ConvNd
        return {
            "device": self.device.type,
            "facts": device.facts(self.device),
            "models": [type(getattr(model, "_orig_mod", model)).__name__ for model in self.models.called],
            "parameters": sum(p.numel() for p in self.models.parameters()),
            "optimizers": [type(optimizer).__name__ for optimizer in self.optimizers.stepped],
            "loader": "" if loader is None else type(getattr(loader, "dataset", loader)).__name__,
            "step_is": script.step_in_words(),
            "backwards_per_step": self.batches_per_step,
            "samples_per_step": script.usual_samples,
            "tokens_per_step": script.usual_tokens,
            "convolves": any(isinstance(module, convolutions) for module in self.models.modules()),
            "random_data": self.loaders.random_data,
            "settings": self._settings(),
            "mechanisms": self._mechanisms(),
            "refused": why_not(script, self.loaders, self.models, self.optimizers),
            "sites": script.sites.all(),
            "notes": script.notes,
            "written": script.outputs.written,
        }

    def behaviour(self) -> Behaviour:
        """What the steps have done until now."""
        return self.witness.behaviour()

    def observe(self, steps: int) -> Job:
        """An `Observation` of at least this many plain steps, and of what else there was."""
        yield from self._procedure.settle()
        start, ended, before = clock(), False, resource.getrusage(resource.RUSAGE_SELF)
        try:
            yield from self._procedure.take(steps, "measuring")
        except Ended:
            if not self._procedure.under_way.all:
                raise
            ended = True
            device.synchronize(self.device)
        taken, after = self._procedure.under_way, resource.getrusage(resource.RUSAGE_SELF)
        outside: dict[str, tuple[int, float]] = {}
        marked = [step for step in taken.all if step not in taken.plain]
        for step in marked:
            name = " + ".join(sorted(step.marks))
            count, spent = outside.get(name, (0, 0.0))
            outside[name] = count + 1, spent + step.seconds
        if ended:
            taken.seconds = clock() - start - sum(step.seconds for step in marked)
        on_cpu = self.device.type == "cpu"
        return Observation(
            block=taken.block(),
            tokens=sum(step.tokens for step in taken.plain),
            optimizer_s=sum(step.updated for step in taken.plain) if on_cpu else None,
            system_s=after.ru_stime - before.ru_stime,
            page_faults=after.ru_minflt - before.ru_minflt,
            outside=outside,
            skipped=self.optimizers.skipped,
            steps=self.script.steps.count,
            ended=ended,
        )

    def try_amp(self, samples: int, limit_s: float) -> Job:
        """Steps on a held batch under an autocast to bfloat16 that ends with them, or after some seconds."""
        script = self.script
        dtypes = {p.dtype for p in self.models.parameters()}
        if self.models.is_compiled or dtypes != {torch.float32}:
            raise Unavailable("autocast cannot be set for some steps only")
        script.toggles["amp"] = "bf16"
        try:
            with self.hold():
                yield from self._procedure.take(1, "bfloat16")
                until, most = clock() + limit_s, self._procedure.steps_for(samples, queues=0)
                taken = yield from self._procedure.take(1, "bfloat16", most, lambda: clock() > until)
        finally:
            self.models.leave_autocast()
            del script.toggles["amp"]
        return taken.block()

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
        if len(self.optimizers.stepped) == 1 and self.batches_per_step == int(self.batches_per_step):
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
    "pin_memory": "pinned memory is for copies to a GPU",
    "non_blocking": "copies that do not wait are copies to a GPU",
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
