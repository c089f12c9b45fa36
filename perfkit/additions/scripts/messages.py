"""Messages from a watched script, and the symptoms they add up to; this module does not import torch."""

import os
import traceback
from collections.abc import Iterator
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from perfkit import lookup
from perfkit.additions.advice.finding import Finding
from perfkit.additions.shared.attribution import TimedLine
from perfkit.additions.shared.trend import Trend
from perfkit.errors import RunFailed
from perfkit.recipe import Value, switches
from perfkit.worker.messages import DeviceFacts, TimedSteps

TEXTS: dict[str, dict[str, Any]] = lookup.toml(__package__, "texts")
LOSSES = 8  # first losses that are compared
SETTABLE = tuple(name for name in switches() if name not in TEXTS["by_hand"])
START, EPOCHS, STEPS, EVALUATION = "start", "starts of epochs", "steps", "evaluation"
CHECKPOINTS, COMPILING, BETWEEN = "checkpoints", "compilation", "between steps"
PARTS = (START, EPOCHS, STEPS, EVALUATION, CHECKPOINTS, COMPILING, BETWEEN)
OWN = "own code"
OF_STEP = ("waiting", "forward", "backward", "optimizer", OWN)  # what a plain step consists of
NOT_STEPS = (EVALUATION, "start", "checkpoint", BETWEEN)  # parts that are not of a plain step
AGAIN = "forward again"  # the part in which gradient checkpointing repeats forward, in a backward pass
BATCHES = ("waiting", "data set", "collate")  # parts in which a batch is loaded, or waited for
LEAST = 0.1  # of the run: the least share of a cause; half of it for causes that are plain to see
ALIKE = 0.7  # of the largest share: from here on, shares count as equal, because looks scatter
MUCH_MEMORY = 30e6
RandomData = StrEnum("RandomData", ["DRAWN", "HELD"])  # numbers that make samples differ with the workers


def limits(module: str) -> Any:
    """The numbers of a module in `limits.toml`, as attributes."""
    return SimpleNamespace(**lookup.toml(__package__, "limits")[module])


def failed(name: str, kind: type[RunFailed] = RunFailed, **facts: object) -> RunFailed:
    """A failure in the words of `texts.toml`; `facts` are the numbers and names in its sentence."""
    text = TEXTS["failures"][name]
    return kind(text["what"].format(**facts), text["remedy"].format(**facts))


def failed_inside(problem: Exception) -> RunFailed:
    """The failure of perfkit in a script's process; its traceback is printed there."""
    traceback.print_exception(problem)
    return failed("inside", kind_of=type(problem).__name__, problem=problem)


class Frame(msgspec.Struct, frozen=True):
    """A call expression: lines from 1, columns from 0 in bytes of UTF-8, as Python counts."""

    file: str
    line: int
    end_line: int
    column: int
    end_column: int

    @property
    def place(self) -> str:
        """`/home/me/train.py:41`."""
        return f"{self.file}:{self.line}"


class Site(msgspec.Struct, frozen=True):
    """A call, whose `role` is a constructor (`loader`, `optimizer` …) or a part of a step (`forward` …)."""

    role: str
    frames: list[Frame]  # in the user's files, the innermost first; none if only libraries were involved
    library: str = ""  # the package that made the call, such as `transformers`; empty if the script did

    @property
    def place(self) -> str:
        """The place of the innermost call in the user's files; empty if there is none."""
        return self.frames[0].place if self.frames else ""


class ScriptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A script after its first steps: `script` of `watch` in docs/json.md."""

    device: str
    facts: DeviceFacts
    startup_s: float = 0.0
    step_s: float = 0.0
    models: list[str] = []
    parameters: int = 0
    optimizers: list[str] = []
    has_fused: bool = True
    loader: str = ""
    step_is: str = ""
    samples_per_step: int = 0
    convolves: bool = False
    settings: dict[str, Value] = {}
    refused: dict[str, str] = {}
    saved_bytes: int = 0
    state_bytes: int = 0
    sites: list[Site] = []
    notes: list[str] = []


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Some plain steps; `ended`: the script has ended with them."""

    block: TimedSteps
    ended: bool = False

    @property
    def step_s(self) -> float:
        return self.block.seconds / max(1, len(self.block.step_s))

    @property
    def waiting(self) -> float:
        return min(1.0, sum(self.block.data_wait_s) / self.block.seconds)


class StepTime(msgspec.Struct, frozen=True, array_like=True):
    """A plain step: its number in the run, its seconds, and the seconds of each part in `OF_STEP`."""

    number: int
    seconds: float
    parts: list[float]
    cpu_s: float = 0.0  # of the thread that trains


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The wall time of the run that was observed, in seconds by part: `run` of `watch` in docs/json.md."""

    parts: dict[str, float]
    imports_s: float = 0.0
    steps: int = 0
    last: int = 0
    plain: list[StepTime] = []
    epochs: list[int] = []
    evaluations: int = 0
    compiled: int = 0
    marked: int = 0
    evaluation_bytes: int = 0
    start_lines: list[TimedLine] = []  # the lines that took most of the start

    @property
    def seconds(self) -> float:
        return sum(self.parts.values())

    def running(self, part: str) -> float:
        return self.parts.get(part, 0.0) / max(self.seconds - self.parts.get(START, 0.0), 1e-9)

    @property
    def of_step(self) -> dict[str, float]:
        if not self.plain:
            return {}
        mean = np.mean([step.parts for step in self.plain], axis=0)
        return dict(zip(OF_STEP, mean.tolist(), strict=True))


class DataFacts(msgspec.Struct, kw_only=True):
    """A loader and its data set: `data` of `evidence` in docs/json.md."""

    kind: str
    workers: int
    keeps_workers: bool = False
    is_iterable: bool = False
    is_split: bool = False
    can_batch: bool = False
    batches: int = 0
    draws: bool = False
    generators: list[str] = []
    in_memory: list[str] = []
    objects: int = 0
    of: list[str] = []
    open_files: dict[str, int] = {}
    shared: list[str] = []
    archives: list[str] = []


class Transform(msgspec.Struct, frozen=True):
    """A transform of images: `pipelines` of `loading` in docs/json.md. Zeros: not known."""

    name: str
    calls: int
    seconds: float
    size: tuple[int, int] = (0, 0)  # width and height of the first image
    before: int = 0  # pixels of all images
    after: int = 0

    def with_calls_of(self, other: "Transform") -> "Transform":
        calls, seconds = self.calls + other.calls, self.seconds + other.seconds
        before, after = self.before + other.before, self.after + other.after
        return Transform(self.name, calls, seconds, self.size, before, after)


class Pipeline(msgspec.Struct, frozen=True):
    """A `Compose` of torchvision: the user's line that calls it, and its transforms in order."""

    place: str = ""
    transforms: list[Transform] = []

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(transform.name for transform in self.transforms)

    def with_calls_of(self, other: "Pipeline") -> "Pipeline":
        """This pipeline, with the calls of another one that has the same transforms."""
        pairs = zip(self.transforms, other.transforms, strict=True)
        return Pipeline(self.place, [first.with_calls_of(second) for first, second in pairs])


class Loading(msgspec.Struct, kw_only=True):
    """The seconds of making batches, in whatever process, and the lines that took them in loader workers."""

    batches: int = 0
    samples: int = 0
    seconds: float = 0.0  # without waits for a core
    wall_s: float = 0.0
    lines: list[TimedLine] = []
    archives: list[str] = []  # of NumPy, opened in workers
    pipelines: list[Pipeline] = []
    timed_s: float = 0.0  # the part of `wall_s` for batches whose transforms were timed


class Rows(msgspec.Struct, frozen=True):
    """The rows of all dense embeddings: how many, how many a step touched, and their share of the weights."""

    count: int
    touched: int
    of_weights: float
    names: list[str] = []


class ZeroRate(msgspec.Struct, frozen=True):
    """Weights with a learning rate of 0 in all steps: `zero_rate` of `evidence` in docs/json.md."""

    count: int
    of_weights: float  # their part of the weights that have gradients
    backward_s: float | None = None


class Unused(msgspec.Struct, frozen=True):
    """A line whose results are mostly not needed: `unused` of `evidence` in docs/json.md."""

    line: TimedLine  # its seconds are those of both passes that this costs
    kept: float  # the part of its results that is needed, at most
    selected_at: str  # the line that selects this part


class BusyThread(msgspec.Struct, frozen=True):
    """A busy thread that the script started: `busy_threads` of `evidence` in docs/json.md."""

    place: str  # its most frequent line
    core: float  # the part of a core that it used
    spins: bool  # whether it only polls there


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of some steps whose stacks were looked at: see docs/json.md."""

    steps: int
    parts: dict[str, float] = {}
    lines: list[TimedLine] = []
    operators: list[TimedLine] = []  # the lines whose operators take most of the forward and backward passes
    in_vain: list[TimedLine] = []  # the lines whose backward pass is for gradients that no optimizer takes
    unused: list[Unused] = []
    loading: Loading | None = None
    data: DataFacts | None = None
    collecting: dict[str, float] = {}
    is_on: dict[str, str] = {}
    nodes: dict[int, int] = {}
    again: float = 0.0
    denormal: float = 0.0
    rows: Rows | None = None
    padding: tuple[float, float, int] = (0.0, 0.0, 0)  # shares: of all rows, of the longest; their length
    zeros: tuple[int, int, float] | None = None  # a dense matrix: rows, columns, the share of non-zeros
    parametrized: tuple[int, float] = (0, 0.0)  # computations of such a weight in a pass; share of a step
    shapes: int = 0
    graphs: int = 0
    threads: int = 0
    busy_threads: list[BusyThread] = []
    one_thread: bool = False
    kept: dict[str, str] = {}
    grown: dict[str, str] = {}
    without_optimizer: float = 0.0
    frozen: float = 0.0
    zero_rate: ZeroRate | None = None
    step_s: float = 0.0
    in_hooks: dict[str, float] = {}
    groups: int = 0
    group_kinds: int = 0
    peak: int | None = None
    memory: int = 0

    @property
    def of_step(self) -> dict[str, float]:
        """The seconds of a step by part, each until the device was done."""
        return {part: seconds / self.steps for part, seconds in self.parts.items() if part not in NOT_STEPS}

    @property
    def steps_s(self) -> float:
        return max(self.steps * sum(self.of_step.values()), 1e-9)


class Growth(msgspec.Struct, frozen=True):
    """Memory before, in the middle of, and after some steps: `memory` of `watch` in docs/json.md."""

    steps: int
    first: int
    middle: int
    last: int
    workers_first: int = 0
    workers_last: int = 0
    threads: int = 0
    each: list[int] = []  # the growth in each part of these steps


class Symptoms(msgspec.Struct, frozen=True, kw_only=True):
    """All facts of a script; `growing`: the part of a step that grows; `printed`: the script's warnings."""

    script: ScriptFacts
    run: Account
    evidence: Evidence
    cores: int
    cpu_has_bf16: bool = True
    trend: Trend | None = None
    growing: str = ""
    memory: Growth | None = None
    printed: list[str] = []
    is_disturbed: bool = False

    def lines(self, *parts: str) -> Iterator[tuple[TimedLine, float]]:
        for line in self.evidence.lines:
            if line.part in parts:
                yield line, self.of_run(line.seconds)

    def of_run(self, seconds: float) -> float:
        """The share of the run, for seconds of the steps that were looked at."""
        return seconds / self.evidence.steps_s * self.run.running(STEPS)

    def found_around(self, finding: Finding, line: TimedLine, of_second: float | None = None) -> Finding:
        """A finding of a line, with what is around it; `of_second`: the share of a second, or as `of_run`."""
        share = self.of_run(line.around_s) if of_second is None else line.around_s * of_second
        return msgspec.structs.replace(finding, around=line.around, around_share=share or None)

    def share_of(self, *parts: str) -> float:
        """The share of the run that parts of its steps take."""
        return self.of_run(sum(self.evidence.parts.get(part, 0.0) for part in parts))

    @property
    def loading(self) -> float:
        return self.share_of("sampler", *BATCHES)

    def loading_lines(self) -> Iterator[tuple[TimedLine, float]]:
        """Lines that load, with their shares of the run; lines in workers share the wait for them."""
        yield from self.lines("sampler", "data set", "collate")
        if loading := self.evidence.loading:
            for line in loading.lines:
                share = min(self.loading, self.of_run(max(loading.wall_s, loading.seconds)))
                yield line, share * line.seconds / max(loading.seconds, line.seconds)

    def site(self, role: str) -> str:
        """The innermost line of a call, and the line of the training loop that leads to it."""
        frames, of_step = self._frames(role), self._frames("backward")
        outside_loop = [frame for frame in frames if frame not in of_step]
        callers = outside_loop[1:][-1:] if of_step and outside_loop else frames[1:2]
        return ", called in ".join(os.path.basename(frame.place) for frame in [*frames[:1], *callers])

    def _frames(self, role: str) -> list[Frame]:
        return next((site.frames for site in self.script.sites if site.role == role), [])
