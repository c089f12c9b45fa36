"""Blocks of steps of a script: first steps, warm-up, settling, ceiling, as the harness has them."""

from __future__ import annotations

import math
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import torch

from perfkit.scripts import toggles
from perfkit.scripts.models import compile_counters
from perfkit.scripts.steps import Step, clock
from perfkit.worker.device import reset_peak

if TYPE_CHECKING:
    from perfkit.scripts.script import Script

Job = Generator[None, Step, dict[str, Any]]
"""Receives steps, returns an answer."""
Rows = list[Step]
_WINDOW, _MAX_WARMUP_STEPS = 4, 200
_STEADY = 0.05
_WAITS = 0.1
"""A loader's queue counts as empty once a step waits for more than this fraction of its time."""
_MAX_SETTLING = 3
"""In multiples of the prefetched batches: the most steps before a loader's pace counts as steady."""
_FILLING_S = 2.0
"""How long workers are waited for that fill their queue."""
_ALL_MARKED = 20
"""After this many steps with something else in each of them, those are what a step is."""


class Unavailable(Exception):
    """A command that this script cannot carry out; the script goes on."""


class Ended(Exception):
    """The script has come to its end within a command."""


def synchronize() -> None:
    """Waits until a GPU has finished its work, if one is used."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


class Blocks:
    """Consecutive steps of a script.

    Steps in which an epoch begins, an evaluation runs or a checkpoint is written are left out of a block,
    with their time, and reported beside it.

    Args:
        script: whose steps.
        tell: called with phase, steps done, steps in total.
    """

    def __init__(self, script: Script, tell: Callable[[str, int, int], None]) -> None:
        self._script, self._tell = script, tell
        self._step_s = math.inf
        self._counts_marked = False

    # ------------------------------------------------------------ commands

    def train(self, early: Rows, loss_steps: int, warmup_s: float, started: float, **_: Any) -> Job:
        """The first steps, then others until their time is steady."""
        script = self._script
        first, more = early, max(0, loss_steps - len(early))
        seconds = sum(step.seconds for step in first)
        if more:
            steps, took = yield from self.run(more, "first steps")
            first, seconds = [*first, *steps], seconds + took
        warm, spent = Rows(), 0.0
        while not self._agreed(self._is_warm(warm, spent, warmup_s)):
            steps, took = yield from self.run(_WINDOW, "warm-up")
            warm, spent = [*warm, *steps], spent + took
        self._step_s = self._of_rank_0(statistics.median(step.seconds for step in warm[-_WINDOW:]))
        size, samples = script.loaders.batch_bytes
        reset_peak(script.models.device())
        return {
            "recipe": self.recipe(), "facts": self._facts(),
            "startup_s": max(0.0, (script.steps.began_at or 0.0) - started),
            "first": block(first, seconds), "warm": block(warm, spent),
            "losses": [float(loss) for loss in script.gradients.losses[: self._backwards(len(first))]],
            "mechanisms": toggles.mechanisms(script),
            "batch_bytes_per_sample": size // max(1, samples),
            "samples_per_step": self._samples_per_step(warm or first),
            "compiled": bool(compile_counters()["graphs"]), "compile_counters": compile_counters(),
            "data_on_device": script.loaders.training is None, "batch_norm": self._has_batch_norm(),
            "weights": "", "malloc": os.environ.get("GLIBC_TUNABLES", ""),
            "wait_policy": os.environ.get("OMP_WAIT_POLICY", ""),
        }  # fmt: skip

    def block(self, samples: int, seconds: float = 0.0, settle: bool = True, queues: int = 1) -> Job:
        """At least this many samples, for at least some seconds; as `Harness.block`."""
        if settle:
            yield from self._settle()
        steps = self._steps_for(samples, seconds, queues)
        on_cpu = self._on_cpu() and self._world() == 1
        before = self._script.loaders.queued()
        rows, took = yield from self.run(
            steps, "measuring", _MAX_SETTLING * self._script.loaders.prefetched() if on_cpu else 0,
            lambda: self._script.loaders.queued() - before,
        )  # fmt: skip
        self._let_workers_finish()
        return block(rows, took)

    def ceiling(self, samples: int) -> Job:
        """Steps on one batch that is already on the device, without the loader."""
        loaders = self._script.loaders
        if loaders.training is None:
            raise Unavailable("the script has no DataLoader, whose batches could be held")
        loaders.hold = True
        try:
            yield from self.run(3, "ceiling")  # frameworks fetch some batches ahead
            self._let_workers_finish()
            rows, took = yield from self.run(self._steps_for(samples), "ceiling")
        finally:
            loaders.release()
        return block(rows, took)

    def ceiling_with_amp(self, samples: int) -> Job:
        """The same, under an autocast to bfloat16 that ends with it."""
        script = self._script
        parameters = [p for model in script.models.found for p in model.parameters()]
        if script.models.compiled_by_script or any(p.dtype != torch.float32 for p in parameters):
            raise Unavailable("autocast cannot be set for some steps only")
        script.toggles["amp"] = "bf16"
        try:
            return (yield from self.ceiling(samples))
        finally:
            script.models.leave_autocast()
            del script.toggles["amp"]

    def observe(self, steps: int) -> Job:
        """At least this many plain steps, and what else there was."""
        yield from self._settle()
        rows, plain, samples, seconds, ended = Rows(), Rows(), 0, 0.0, False
        start, (system_s, faults) = clock(), _used()
        try:
            while len(plain) < steps:
                step = yield
                self._add(step, rows, plain)
                samples, seconds = samples + step.samples, seconds + step.seconds
                rate = f"step {self._script.steps.count}: {samples / seconds:.4g} samples/s"
                self._tell(rate, len(plain), steps)
        except Ended:
            if not rows:
                raise
            ended = True
        synchronize()
        total, (system_to, faults_to) = clock() - start, _used()
        memory = {"system_s": system_to - system_s, "page_faults": faults_to - faults}
        return self._observation(rows, plain, total, ended) | memory

    def _observation(self, rows: Rows, plain: Rows, total: float, ended: bool) -> dict[str, Any]:
        outside: dict[str, tuple[int, float]] = {}
        for step in rows:
            if step.marks and not self._counts_marked:
                name = " + ".join(sorted(step.marks))
                count, seconds = outside.get(name, (0, 0.0))
                outside[name] = count + 1, seconds + step.seconds
        return {
            "block": block(plain, total - sum(seconds for _, seconds in outside.values())),
            "tokens": sum(step.tokens for step in plain), "outside": outside,
            "optimizer_s": sum(step.updated for step in plain) if self._on_cpu() else None,
            "skipped": self._script.gradients.skipped, "steps": self._script.steps.count, "ended": ended,
        }  # fmt: skip

    # ------------------------------------------------------------ running

    def run(
        self, steps: int, phase: str, more: int = 0, surplus: Callable[[], int] = lambda: 0
    ) -> Generator[None, Step, tuple[Rows, float]]:
        """Plain steps and their seconds: `steps`, then up to `more` until the queue is as full as before."""
        rows, plain = Rows(), Rows()
        first: int | None = None
        synchronize()
        start = clock()
        while True:
            self._add((yield), rows, plain)
            self._tell(phase, min(len(plain), steps), steps)
            if len(plain) < steps:
                continue
            ahead = surplus() if more else 0
            first = ahead if first is None else first
            if ahead * first <= 0 or len(plain) >= steps + more:
                break
        synchronize()
        marked = 0.0 if self._counts_marked else sum(step.seconds for step in rows if step.marks)
        return plain, clock() - start - marked

    def _add(self, step: Step, rows: Rows, plain: Rows) -> None:
        """Adds a step to all of them and, if it counts, to the plain ones."""
        rows.append(step)
        if self._counts_marked or not step.marks:
            plain.append(step)
        elif not plain and len(rows) >= _ALL_MARKED:
            self._counts_marked = True
            marks = " and ".join(sorted(set().union(*(row.marks for row in rows))))
            self._script.note(f"every step has {marks} in it, so that is part of a step here")
            plain.extend(rows)

    def _let_workers_finish(self) -> None:
        """Waits until the loader's queue is full: on a CPU its workers would slow down what comes next."""
        until, full = clock() + _FILLING_S, self._script.loaders.prefetched()
        while self._script.loaders.queued() < full and clock() < until:
            time.sleep(0.02)

    def _settle(self) -> Generator[None, Step, None]:
        """Uses up what was prefetched while the script stood still; as `Harness.settle`."""
        prefetched = self._script.loaders.prefetched()
        if not prefetched:
            return
        if self._world() > 1:
            yield from self.run(prefetched, "settling")
            return
        yield from self.run(prefetched, "settling")
        for _ in range(_MAX_SETTLING * prefetched + 1):
            (step, *_), _ = yield from self.run(1, "settling")
            waits = step.waited > _WAITS * step.seconds
            workers = self._script.loaders.training.num_workers
            if waits or self._script.loaders.queued() > prefetched - workers:
                break

    def _steps_for(self, samples: int, seconds: float = 0.0, queues: int = 1) -> int:
        size = (self._samples_per_step([]) or 1) * self._world()
        lasting = math.ceil(seconds / self._step_s)
        prefetched = self._script.loaders.prefetched()
        return int(self._of_rank_0(max(1, math.ceil(samples / size), lasting, queues * prefetched)))

    @staticmethod
    def _is_warm(warm: Rows, spent: float, budget: float) -> bool:
        if spent >= budget or len(warm) >= _MAX_WARMUP_STEPS:
            return bool(warm)
        if len(warm) < 2 * _WINDOW:
            return False
        before = statistics.median(step.seconds for step in warm[-2 * _WINDOW : -_WINDOW])
        last = statistics.median(step.seconds for step in warm[-_WINDOW:])
        return abs(before - last) <= _STEADY * before

    def _on_cpu(self) -> bool:
        return self._script.models.device().type == "cpu"

    # ------------------------------------------------------------ ranks

    @staticmethod
    def _world() -> int:
        distributed: Any = sys.modules.get("torch.distributed")
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return 1
        return int(distributed.get_world_size())

    def _of_rank_0(self, value: float) -> float:
        """The value of rank 0: after different numbers of steps, ranks would wait for ever."""
        if self._world() == 1:
            return value
        shared = torch.tensor([value], device=self._script.models.device())
        torch.distributed.broadcast(shared, 0)
        return float(shared.item())

    def _agreed(self, decision: bool) -> bool:
        return bool(self._of_rank_0(float(decision)))

    # ------------------------------------------------------------ facts

    def _samples_per_step(self, rows: Rows) -> int:
        """Of a usual step of this rank."""
        if rows:
            self._script.usual_samples = int(statistics.median(step.samples for step in rows))
        return self._script.usual_samples

    def _backwards(self, steps: int) -> int:
        script = self._script
        return round(steps * script.gradients.count / max(1, script.steps.count))

    def recipe(self) -> dict[str, Any]:
        """All switches: as read, and the defaults of what cannot be read."""
        from perfkit.recipe import Recipe, allowed

        return Recipe().replace(**allowed(toggles.settings(self._script))).to_dict()

    def _facts(self) -> dict[str, str]:
        script = self._script
        facts = {"step": script.step_in_words()}
        if script.gradients.skipped:
            facts["skipped steps"] = f"{script.gradients.skipped}, by the gradient scaler"
        return facts | {f"note {number}": text for number, text in enumerate(script.notes, 1)}

    def _has_batch_norm(self) -> bool:
        kinds = torch.nn.modules.batchnorm._BatchNorm
        return any(isinstance(m, kinds) for model in self._script.models.found for m in model.modules())


def _used() -> tuple[float, int]:
    """Seconds that the system has worked for this process, and page faults by which it gave it memory."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_stime, usage.ru_minflt


def block(steps: Rows, seconds: float) -> dict[str, Any]:
    """Plain data of `worker.messages.Block`."""
    return {
        "samples": sum(step.samples for step in steps), "seconds": max(seconds, 1e-9),
        "step_s": [step.seconds for step in steps], "data_wait_s": [step.waited for step in steps],
    }  # fmt: skip
