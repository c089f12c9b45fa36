"""One recipe under the profiler, in a fresh child: the trace file, what it says, what the profiler cost."""

from __future__ import annotations

import contextlib
import functools
import json
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar, Unpack

from msgspec import to_builtins

from perfkit import machine
from perfkit import trace as traces
from perfkit.errors import InvalidValue
from perfkit.process.child import Child, Progress
from perfkit.process.lock import device_lock
from perfkit.process.ranks import RankGroup, start_ranks
from perfkit.program.recipe import Recipe
from perfkit.studies import engine
from perfkit.trace import diagnosis, loading
from perfkit.worker.messages import Command, FindSyncs, MeasureKernels, MeasureMemory, RecordProfile, Train

A = TypeVar("A")


@dataclass(frozen=True)
class Recording:
    """What the profiler is to do: steps it skips, throws away and records, and what it notes of them."""

    wait: int = 1
    warmup: int = 4
    active: int = 3
    shapes: bool = True
    memory: bool = True
    stacks: bool = False


@dataclass(frozen=True)
class Profile:
    """A profile and its analysis."""

    path: Path
    """The trace; chrome://tracing and ui.perfetto.dev open it."""
    recipe: Recipe
    trace: traces.Trace
    analysis: traces.Analysis
    findings: list[diagnosis.Bottleneck]
    slowdown: float | None
    """A profiled step's time over that of one without the profiler, by medians of a few: rough."""
    loading: loading.Loading | None
    """What the loader did for these steps; None with resident data, which has no loader."""
    marks: list[float]
    """Where each recorded step starts, on the clock of the loader's times."""

    def lanes(self, step: int = 0) -> traces.Lanes:
        """The timeline of a recorded step, with a row for each loader worker on top."""
        window = traces.lanes(self.trace, step)
        return loading.lanes(self.loading, window, self.marks[step]) if self.loading else window

    def describe(self) -> str:
        """Where the file is, and how much the profiler slowed the steps down."""
        if self.slowdown is None:
            cost = "how much slower a step is with the profiler is not known"
        elif self.slowdown < 1:
            cost = "the profiler's slow-down is within the noise of these few steps"
        else:
            cost = f"with the profiler a step takes about {self.slowdown:.1f}× the time of one without it"
        return f"{self.path}: {cost}. Open it in https://ui.perfetto.dev"


class Where(TypedDict, total=False):
    """Of what training, as for `perfkit.plan`."""

    preset: str | None
    settings: Mapping[str, Any] | None
    """Switches set from the baseline up."""
    device: str | None
    options: Mapping[str, Any] | None
    """The workload's constructor arguments."""
    seed: int


def profile(
    workload: str | None = None,
    recipe: Recipe | str | None = None,
    recording: Recording | None = None,
    out: str | Path | None = None,
    on_progress: Progress = lambda phase, fraction: None,
    cancelled: threading.Event | None = None,
    **where: Unpack[Where],
) -> Profile:
    """Profiles some steps of a recipe, or of a rung of the ladder.

    Args:
        workload: a built-in one, or `package.module:name`.
        recipe: the switches, or the name of a rung, on top of the default ladder below it; the plain loop
            if None.
        recording: what to record.
        out: the trace file; a new one among the runs if None.
        on_progress: told the phase and its fraction.
        cancelled: set it from any thread to stop.
        where: preset, settings, device, options, seed.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    name = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}.pt.trace.json.gz"
    path = Path(out) if out else machine.runs_folder() / "profiles" / name
    if not path.name.endswith((".json", ".json.gz")):
        raise InvalidValue(f"cannot write a trace to {path}", "Give a name that ends in .json or .json.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    command = RecordProfile(path=str(path.absolute()), **asdict(recording or Recording()))
    with tempfile.TemporaryDirectory(prefix="perfkit-") as notes:
        asked = _Asked(workload, recipe, where, on_progress, cancelled)
        told = asked.ask(command, notes=notes)
        made = [note for file in Path(notes).glob("*.jsonl") for note in _notes(file.read_text())]
    loaded = traces.load(path)
    analysis = traces.analyse(loaded)
    steps = [step.duration_us / 1e6 for step in analysis.steps]
    slowdown = statistics.median(steps) / told.plain_step_s if steps else None
    used, marks = asked.recipe, told.marks
    loaded_by = loading.join(made, told.taken, used.batch_size, used.workers, marks, told.pins)
    found = diagnosis.diagnose(analysis)
    return Profile(path, used, loaded, analysis, found, slowdown, loaded_by, marks)


def syncs(
    workload: str | None = None, recipe: Recipe | str | None = None, steps: int = 4, **where: Unpack[Where]
) -> dict[str, Any]:
    """Copies and waits between host and device in a training's steps; arguments as for `profile`.

    Returns:
        `places`: one dictionary each (see `syncs.Place`); `table`: the same for people; `device`.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    asked = _Asked(workload, recipe, where)
    return {**to_builtins(asked.ask(FindSyncs(steps), warm=False)), "device": asked.plan.device}


def memory(
    workload: str | None = None, recipe: Recipe | str | None = None, **where: Unpack[Where]
) -> dict[str, Any]:
    """What holds memory in a training step; arguments as for `profile`.

    Returns:
        See `perfkit.worker.memory.measure`, and `recipe` in words.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    asked = _Asked(workload, recipe, where)
    return {**to_builtins(asked.ask(MeasureMemory(), warm=False)), "recipe": asked.recipe.describe()}


def kernels(
    workload: str | None = None, recipe: Recipe | str | None = None, **where: Unpack[Where]
) -> dict[str, Any]:
    """What the device can do, by shape, and how much of it a training uses; arguments as for `profile`.

    Returns:
        See `worker.kernels.measure`; `step_s`; `recipe` in words; `device`; `mfu`: FLOP/s of the step over
        the measured peak of its type; `light_share`: the least time FLOPs and bytes need, over the step's.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    known = _Asked(workload, recipe, where)
    found = to_builtins(known.ask(MeasureKernels()))
    asked, shares = found["work"], {"mfu": None, "light_share": None}
    if asked["flops"]:
        needed_s = asked["flops"] / found["peaks"][asked["dtype"]]
        shares["mfu"] = needed_s / found["step_s"]
        shares["light_share"] = (needed_s + asked["bytes"] / found["bytes_per_s"]) / found["step_s"]
    return {**found, **shares, "recipe": known.recipe.describe(), "device": known.plan.device}


def nsys(
    workload: str | None = None,
    recipe: Recipe | str | None = None,
    out: str | Path = "perfkit-nsys",
    **where: Unpack[Where],
) -> list[str]:
    """The Nsight Systems command for a recipe; `process.nsys.record` runs it. Arguments as for `profile`.

    Raises:
        PerfkitError: a value is not allowed.
    """
    from perfkit.process import nsys as tool

    asked = _Asked(workload, recipe, where)
    asked.stop()
    changed = {name: here for name, (here, _) in asked.recipe.diff(Recipe()).items()}
    told = tool.program(asked.plan.workload, asked.options, changed, asked.plan.device, asked.plan.seed)
    return tool.command(told, Path(out), asked.plan.device.startswith("cuda"))


class _Asked:
    """A training that is known to act here: its plan, options and recipe, and a child that has loaded it."""

    def __init__(
        self,
        workload: str | None,
        recipe: Recipe | str | None,
        where: Where,
        on_progress: Progress = lambda phase, fraction: None,
        cancelled: threading.Event | None = None,
    ) -> None:
        stage = recipe if isinstance(recipe, str) else "baseline"
        wanted = {
            **(recipe.to_dict() if isinstance(recipe, Recipe) else {}),
            **(where.get("settings") or {}),
        }
        self.plan = engine.plan(
            workload, where.get("preset"), [stage], wanted, where.get("device"), where.get("options"), True,
            where.get("seed", 0),
        )  # fmt: skip
        described, stages, child = engine.resolve_and_keep(self.plan, on_progress, cancelled)
        self._child: Child | RankGroup = child
        self._on_progress, self._cancelled = on_progress, cancelled
        self.options = described.options
        self.recipe = stages[-1].recipe
        if stages[-1].reason:
            child.stop()
            raise InvalidValue(f"stage '{stage}' does not apply here: {stages[-1].reason}", "Choose another")

    def stop(self) -> None:
        """Ends the child."""
        self._child.stop()

    def ask(self, command: Command[A], warm: bool = True, notes: str = "") -> A:
        """Trains (a process for each rank) until it is warm, gives it one command, and ends it."""
        plan, used, child = self.plan, self.recipe, self._child
        waits = functools.partial(self._on_progress, f"waiting: another run uses {plan.device}", 0.0)
        try:
            with device_lock(plan.device, self._cancelled, waits):
                started = child.started
                if used.ranks > 1:
                    assert isinstance(child, Child)
                    self._child = start_ranks(child, plan.loads(), used.ranks)
                self._child.ask(
                    Train(
                        recipe=used.to_dict(), seed=plan.seed, loss_steps=plan.preset.loss_steps,
                        warmup_s=plan.preset.warmup_s if warm else 0.0, started=started, batch_times=notes,
                    )
                )  # fmt: skip
                return self._child.ask(command)
        finally:
            self._child.stop()


def _notes(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # the child's end cut it off
            yield json.loads(line)
