"""Where the wall time of a run goes, as far as it was seen: its parts add up.

`RunAccount` keeps it in the script's process, `Account` is what it tells.
"""

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator

import msgspec

from perfkit.additions.scripts.outputs import clock
from perfkit.additions.scripts.script import Script, Step

START, EPOCHS, STEPS, EVALUATION = "start", "starts of epochs", "steps", "evaluation"
CHECKPOINTS, COMPILING, BETWEEN = "checkpoints", "compilation", "between steps"
PARTS = (START, EPOCHS, STEPS, EVALUATION, CHECKPOINTS, COMPILING, BETWEEN)
OWN = "own code"
OF_STEP = ("waiting", "forward", "backward", "optimizer", OWN)
"""What a plain step consists of."""
_KEPT = 4000
"""Plain steps of which each time is kept."""
_SITES = ("evaluation", "evaluation with gradients", "checkpoint", "retain_graph", "backward")


class StepTime(msgspec.Struct, frozen=True, array_like=True):
    """A plain step: its number in the run, its seconds, and those of its parts as in `OF_STEP`."""

    number: int
    seconds: float
    parts: list[float]


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """The wall time of a run that was seen: `parts` → seconds.

    `imports_s`: until torch was imported, of the start. `steps`: how many were seen, of `last` in all;
    `epochs`: the numbers of those that began one; `evaluations`, `compiled`: how many had one, made graphs.
    `evaluation_bytes`: by how much the process grew within an evaluation, at most. `sites`: places of calls
    that matter, each from the innermost outwards.
    """

    parts: dict[str, float]
    imports_s: float = 0.0
    steps: int = 0
    last: int = 0
    plain: list[StepTime] = []
    epochs: list[int] = []
    evaluations: int = 0
    compiled: int = 0
    evaluation_bytes: int = 0
    sites: dict[str, list[str]] = {}

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self.parts.values())

    def running(self, part: str) -> float:
        """The share of the run, without its start, that a part takes."""
        return self.parts.get(part, 0.0) / max(self.seconds - self.parts.get(START, 0.0), 1e-9)

    @property
    def steps_share(self) -> float:
        """The share of the run, without its start, that plain steps take."""
        return self.running(STEPS)

    @property
    def of_step(self) -> dict[str, float]:
        """Seconds of a plain step by its part: means."""
        count = max(1, len(self.plain))
        sums = [sum(each) / count for each in zip(*(step.parts for step in self.plain), strict=True)]
        return dict(zip(OF_STEP, sums, strict=False))


class RunAccount:
    """Adds up the steps of a script while little but their time is looked at; a part of it."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._is_open = self._is_timed = not script.settings["witness"]  # from the first step on
        self._plain, self._marked = list[StepTime](), list[Step]()
        self._more_s = 0.0  # of plain steps that are not kept
        self._epochs, self._count = list[int](), 0
        self._imported_at = time.time()
        self._fetching_since: float | None = None
        self._evaluating_since: float | None = None
        self._bytes_before = self._evaluation_bytes = 0

    @contextlib.contextmanager
    def counting(self, is_timed: bool) -> Iterator[None]:
        """Steps count while it lasts, with the times of plain ones if nothing else is looked at."""
        self._is_open, self._is_timed = True, is_timed
        try:
            yield
        finally:
            self._is_open = self._is_timed = False

    @property
    def is_evaluating(self) -> bool:
        """Whether an evaluation has begun that is not over."""
        return self._evaluating_since is not None

    # ------------------------------------------------------------ events

    def on_fetch(self) -> None:
        """A batch is asked for, of whatever loader."""
        self._fetching_since = self._fetching_since or clock()

    def on_evaluation(self) -> None:
        """A model or a batch is used without gradients."""
        if self._evaluating_since is None:
            self._evaluating_since = self._fetching_since or clock()
            self._bytes_before = resident_bytes() if self._is_open else 0
        elif self._is_open:
            self._evaluation_bytes = max(self._evaluation_bytes, resident_bytes() - self._bytes_before)

    def on_training(self) -> None:
        """A forward or backward pass of the training begins: an evaluation, if there was one, is over."""
        if self._evaluating_since is not None:
            spent = self._script.steps.now.spent
            known = spent["checkpoint"] + spent["start"] + spent["evaluated"]
            spent["evaluated"] += max(0.0, clock() - self._evaluating_since - known)
        self._fetching_since = self._evaluating_since = None

    def on_steps(self, steps: list[Step]) -> None:
        self.on_training()
        first = self._script.steps.count - len(steps) + 1
        for number, step in enumerate(steps, first):
            if "new epoch" in step.marks:
                self._epochs.append(number)
            if not self._is_open:
                continue
            self._count += 1
            if step.marks:
                self._marked.append(step)
            elif self._is_timed and len(self._plain) < _KEPT:
                self._plain.append(StepTime(number, step.seconds, _parts(step)))
            else:
                self._more_s += step.seconds

    # ------------------------------------------------------------ answering

    def account(self, started: float, began: float) -> Account:
        """What was seen until now; the process `started` and the first step `began` at these times."""
        plain, marked = self._plain, self._marked
        usual_s = statistics.median(step.seconds for step in plain) if plain else None
        parts = defaultdict[str, float](float)
        parts[START] = max(0.0, began - started)
        parts[STEPS] = self._more_s + sum(step.seconds for step in plain)
        for step in marked:
            for name, seconds in _split(step, usual_s).items():
                parts[name] += seconds
        sites = self._script.sites
        return Account(
            parts={name: parts[name] for name in PARTS if parts[name] > 0},
            imports_s=max(0.0, self._imported_at - started),
            steps=self._count,
            last=self._script.steps.count,
            plain=plain or [StepTime(at, step.seconds, _parts(step)) for at, step in enumerate(marked)],
            epochs=self._epochs,
            evaluations=sum("evaluation" in step.marks for step in marked),
            compiled=sum("compilation" in step.marks for step in marked),
            evaluation_bytes=self._evaluation_bytes,
            sites={
                role: [f"{f.file}:{f.line}" for s in sites[role][:1] for f in s.frames] for role in _SITES
            },
        )


def _parts(step: Step) -> list[float]:
    """Seconds of a plain step as in `OF_STEP`."""
    known = [step.waited, step.spent["forward"], step.spent["backward"], step.updated]
    return [*known, max(0.0, step.seconds - sum(known))]


def _split(step: Step, usual_s: float | None) -> dict[str, float]:
    """The seconds of a step with something else in it, by part; what a usual step would take is a step."""
    spent = step.spent
    split = {EPOCHS: spent["start"], EVALUATION: spent["evaluated"], CHECKPOINTS: spent["checkpoint"]}
    rest = max(0.0, step.seconds - sum(split.values()))
    extra = 0.0 if usual_s is None else rest - usual_s
    if usual_s is None or extra < usual_s:  # as long as a step may be
        return {**split, STEPS: rest}
    return {**split, STEPS: usual_s, COMPILING if "compilation" in step.marks else BETWEEN: extra}


def resident_bytes() -> int:
    """Memory of this process; 0 where that cannot be read so cheaply."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        return 0
