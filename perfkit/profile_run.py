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
from typing import Any

from perfkit import diagnose, environment, experiment, loading
from perfkit import trace as traces
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.runner import Child, Progress, turn


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
    findings: list[diagnose.Finding]
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


def profile(
    workload: str | None = None,
    recipe: Recipe | str | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    recording: Recording | None = None,
    out: str | Path | None = None,
    on_progress: Progress = lambda phase, fraction: None,
    cancelled: threading.Event | None = None,
) -> Profile:
    """Profiles some steps of a recipe, or of a rung of the ladder.

    Args:
        workload: a built-in one, or `package.module:name`.
        recipe: the switches, or the name of a rung, on top of the default ladder below it; the plain loop
            if None.
        preset: as for `perfkit.plan`, like the next four.
        settings: switches set from the baseline up.
        device: `cuda`, `mps` or `cpu`.
        options: the workload's constructor arguments.
        seed: of weights, order and augmentation.
        recording: what to record.
        out: the trace file; a new one among the runs if None.
        on_progress: told the phase and its fraction.
        cancelled: set it from any thread to stop.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    plan, options, used = _resolved(workload, recipe, preset, settings, device, options, seed)
    name = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}.pt.trace.json.gz"
    path = Path(out) if out else environment.runs_folder() / "profiles" / name
    if not path.name.endswith((".json", ".json.gz")):
        raise InvalidValue(f"cannot write a trace to {path}", "Give a name that ends in .json or .json.gz")
    path.parent.mkdir(parents=True, exist_ok=True)
    how = asdict(recording or Recording())
    waits = functools.partial(on_progress, f"waiting: another run uses {plan.device}", 0.0)
    with turn(plan.device, cancelled, waits), tempfile.TemporaryDirectory(prefix="perfkit-") as notes:
        child = Child(on_progress, cancelled)
        told = _in_child(child, plan, options, used, {"path": str(path.absolute()), **how}, notes)
        made = [note for file in Path(notes).glob("*.jsonl") for note in _notes(file.read_text())]
    loaded = traces.load(path)
    analysis = traces.analyse(loaded)
    steps = [step.duration_us / 1e6 for step in analysis.steps]
    slowdown = statistics.median(steps) / told["plain_step_s"] if steps else None
    marks = told["marks"]
    loaded_by = loading.join(made, told["taken"], used.batch_size, used.workers, marks, told["pins"])
    found = diagnose.diagnose(analysis)
    return Profile(path, used, loaded, analysis, found, slowdown, loaded_by, marks)


def syncs(
    workload: str | None = None,
    recipe: Recipe | str | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    seed: int = 0,
    steps: int = 4,
) -> dict[str, Any]:
    """Copies and waits between host and device in a training's steps; arguments as for `profile`.

    Returns:
        `places`: one dictionary each (see `syncs.Place`); `table`: the same for people; `device`.

    Raises:
        PerfkitError: a value is not allowed, or the training failed.
    """
    plan, chosen, used = _resolved(workload, recipe, preset, settings, device, options, seed)
    with turn(plan.device):
        return {**_in_child(Child(), plan, chosen, used, {"steps": steps}), "device": plan.device}


def _resolved(
    workload: str | None, recipe: Recipe | str | None, preset: str | None,
    settings: Mapping[str, Any] | None, device: str | None, options: Mapping[str, Any] | None, seed: int,
) -> tuple[experiment.Plan, dict[str, Any], Recipe]:  # fmt: skip
    """The plan, the workload's options and the recipe, once it is known to act here."""
    stage = recipe if isinstance(recipe, str) else "baseline"
    wanted = {**(recipe.to_dict() if isinstance(recipe, Recipe) else {}), **(settings or {})}
    plan = experiment.plan(workload, preset, [stage], wanted, device, options, True, seed)
    described, stages = experiment.resolve(plan)
    if stages[-1].reason:
        raise InvalidValue(f"stage '{stage}' does not apply here: {stages[-1].reason}", "Choose another")
    return plan, described["options"], stages[-1].recipe


def _in_child(
    child: Child, plan: experiment.Plan, options: Mapping[str, Any], recipe: Recipe, how: Mapping[str, Any],
    notes: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Trains in a child until it is warm; then profiles, or without a folder for notes looks for syncs."""
    try:
        child.ask(
            "describe", workload=plan.workload, preset=plan.preset.name, options=dict(options),
            device=plan.device,
        )  # fmt: skip
        child.ask(
            "train", recipe=recipe.to_dict(), seed=plan.seed, loss_steps=plan.preset.loss_steps,
            warmup_s=plan.preset.warmup_s, started=child.started, timed=notes or "",
        )  # fmt: skip
        return child.ask("profile" if notes else "syncs", **how)
    finally:
        child.stop()


def _notes(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        with contextlib.suppress(ValueError):  # the child's end cut it off
            yield json.loads(line)
