"""One recipe under the profiler, in a fresh child: the trace file, what it says, what the profiler cost."""

from __future__ import annotations

import contextlib
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self, TypedDict, TypeVar, Unpack

from perfkit import machine
from perfkit import trace as traces
from perfkit.errors import InvalidValue
from perfkit.process.conversation import OnProgress as Progress
from perfkit.recipe import Recipe
from perfkit.studies.ladder import acting, ladder_stages
from perfkit.studies.plan import plan
from perfkit.studies.setup import Setup
from perfkit.trace import diagnosis, loading
from perfkit.worker.reports import KernelReport, MemoryReport, ProfileReport, SyncReport

A = TypeVar("A")


@dataclass(frozen=True)
class ProfilerOptions:
    """How many steps the profiler skips, discards and records, and what it records of them."""

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
    """What the loader did for these steps; None without one, if the data set lies on the device."""
    marks: list[float]
    """Where each recorded step starts, on the clock of the loader's times."""

    def lanes(self, step: int = 0) -> traces.Lanes:
        """The timeline of a recorded step, with a row for each loader worker on top."""
        window = traces.lanes(self.trace, step)
        return loading.lanes(self.loading, window, self.marks[step]) if self.loading else window

    def describe(self) -> str:
        """Where the file is, and how much the profiler slowed the steps down."""
        if self.slowdown is None:
            cost = "the profiler's slow-down could not be measured"
        elif self.slowdown < 1:
            cost = "the profiler's slow-down is within the noise of these few steps"
        else:
            cost = f"with the profiler a step takes about {self.slowdown:.1f}× the time of one without it"
        if self.analysis.device["simulated"]:
            cost = "simulated, no profiler ran"
        return f"{self.path}: {cost}. Open it in https://ui.perfetto.dev"


class TrainingSpec(TypedDict, total=False):
    """What is trained, as for `perfkit.plan`."""

    preset: str | None
    settings: Mapping[str, Any] | None
    """Switches set from the baseline up."""
    device: str | None
    options: Mapping[str, Any] | None
    """The workload's constructor arguments."""
    seed: int
    host: str | None
    """Of a simulated GPU."""


def profile(
    workload: str | None = None,
    recipe: Recipe | str | None = None,
    profiler: ProfilerOptions | None = None,
    out: str | Path | None = None,
    on_progress: Progress = lambda phase, fraction: None,
    cancelled: threading.Event | None = None,
    **spec: Unpack[TrainingSpec],
) -> Profile:
    """Profiles some steps of a recipe, or of a rung of the ladder.

    Args:
        workload: a built-in one, or `package.module:name`.
        recipe: the switches, or the name of a rung, on top of the default ladder below it; the plain loop
            if None.
        profiler: what to record.
        out: the trace file; a new one among the runs if None.
        on_progress: called with the phase and its fraction.
        cancelled: set it from any thread to stop.
        spec: preset, settings, device, options, seed.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    name = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}.pt.trace.json.gz"
    path = Path(out) if out else machine.runs_folder() / "profiles" / name
    if not path.name.endswith((".json", ".json.gz")):
        raise InvalidValue(f"cannot write a trace to {path}", "Give a name that ends in .json or .json.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="perfkit-") as folder,
        PreparedTraining(workload, recipe, spec, on_progress, cancelled) as training,
    ):
        report = training.ask(
            "profile", ProfileReport, batch_times=folder, path=str(path.absolute()),
            **asdict(profiler or ProfilerOptions()),
        )  # fmt: skip
        fetches = list(loading.read_notes(Path(folder)))
    trace = traces.load(path)
    analysis = traces.analyse(trace)
    steps = [step.duration_us / 1e6 for step in analysis.steps]
    slowdown = statistics.median(steps) / report.plain_step_s if steps else None
    used, marks = training.recipe, report.marks
    loaded = loading.join(fetches, report.taken, used.batch_size, used.workers, marks, report.pins)
    return Profile(path, used, trace, analysis, diagnosis.diagnose(analysis), slowdown, loaded, marks)


def syncs(
    workload: str | None = None,
    recipe: Recipe | str | None = None,
    steps: int = 4,
    **spec: Unpack[TrainingSpec],
) -> SyncReport:
    """Copies and waits between host and device in a training's steps; arguments as for `profile`.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    with PreparedTraining(workload, recipe, spec) as training:
        return training.ask("syncs", SyncReport, warm=False, steps=steps)


def memory(
    workload: str | None = None, recipe: Recipe | str | None = None, **spec: Unpack[TrainingSpec]
) -> MemoryReport:
    """What holds memory in a training step; arguments as for `profile`.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    with PreparedTraining(workload, recipe, spec) as training:
        return training.ask("memory", MemoryReport, warm=False)


def kernels(
    workload: str | None = None, recipe: Recipe | str | None = None, **spec: Unpack[TrainingSpec]
) -> KernelReport:
    """What the device can do, by shape, and how much of it a training uses; arguments as for `profile`.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    with PreparedTraining(workload, recipe, spec) as training:
        return training.ask("kernels", KernelReport)


class PreparedTraining:
    """A training that can act here: its plan, its recipe, and a child that has loaded the workload.

    Raises:
        PerfkitError: a value is not allowed, or the recipe cannot act here.
    """

    def __init__(
        self,
        workload: str | None,
        recipe: Recipe | str | None,
        spec: TrainingSpec,
        on_progress: Progress = lambda phase, fraction: None,
        cancelled: threading.Event | None = None,
    ) -> None:
        settings = {
            **(recipe.to_dict() if isinstance(recipe, Recipe) else {}),
            **(spec.get("settings") or {}),
        }
        self.plan = plan(
            workload, spec.get("preset"), [recipe if isinstance(recipe, str) else "baseline"], settings,
            spec.get("device"), spec.get("options"), below=True, seed=spec.get("seed", 0),
            host=spec.get("host"),
        )  # fmt: skip
        self.setup = Setup(
            self.plan, on_progress=lambda now: on_progress(now.phase, now.fraction), cancelled=cancelled
        )
        self.recipe: Recipe

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            setup = stack.enter_context(self.setup)
            self.recipe = acting(list(ladder_stages(self.plan, setup.target))[-1]).recipe
            self._ends = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def ask(
        self, question: str, kind: type[A], warm: bool = True, batch_times: str = "", **arguments: Any
    ) -> A:
        """Trains until it is warm (a process for each rank), asks one question, and ends the training."""
        preset = self.plan.preset
        with self.setup.exclusive():
            warmup_s = preset.warmup_s if warm else 0.0
            child, _ = self.setup.train(self.recipe, preset.loss_steps, warmup_s, batch_times)
            answer = child.ask(question, kind, **arguments)
            self.setup.stop(child)
            return answer
