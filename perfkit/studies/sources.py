"""What is measured, and the sources of runs: this machine, a recording, a simulated GPU, a script.

A study asks a source for what it needs and never for its kind. What a source cannot answer is refused, with
the reason, before anything starts.
"""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, ClassVar, Generic, Self, TypedDict, Unpack

from typing_extensions import TypeVar  # that of Python 3.11 has no default

from perfkit import workloads
from perfkit.errors import InvalidValue, one_of
from perfkit.ladder.catalogue import TOGETHER, Budget, Goal, Size, Stage, StopRule, optimization
from perfkit.machine import devices
from perfkit.recipe import Recipe, Value, switches
from perfkit.results import Run, RunStore
from perfkit.rules import Target
from perfkit.worker.messages import Description, DeviceFacts

SessionT_co = TypeVar("SessionT_co", bound="Session", default="Session", covariant=True)


def names_of(given: Sequence[str]) -> tuple[str, ...]:
    """Names that a user gives; a text is one name, not the name of each of its letters."""
    return (given,) if isinstance(given, str) else tuple(given)


class Study(StrEnum):
    """What runs are asked for, in the words of an error. A source may refuse some; additions have others."""

    LADDER = "a ladder"
    COMPARISON = "a comparison"
    GATE = "--fail-if-slower"
    NOISE = "A/A noise"


@dataclass(frozen=True)
class Update:
    """What a study is doing now."""

    stage: str
    phase: str
    fraction: float  # part of the whole study that is done (0 to 1)
    run: Run | None = None  # the run that has just ended, whatever its status
    left_s: float | None = None  # how long it takes at most from now; None where that is not known
    is_waiting: bool = False  # whether it waits for another measurement to end

    def describe(self) -> str:
        """One line for people; before the first stage there is only the phase."""
        text = f"{self.stage}: {self.phase}" if self.stage else self.phase
        if self.left_s is None or math.isinf(self.left_s):
            return text
        minutes, seconds = divmod(round(self.left_s), 60)
        return f"{text}, at most {minutes}:{seconds:02} left"


class Progress:
    """Follows a study and stops it.

    `tell` is called often, from the thread that started the study. `cancelled`, set from any thread, stops
    it; what was measured is kept.
    """

    def __init__(
        self, tell: Callable[[Update], None] = lambda update: None, cancelled: threading.Event | None = None
    ) -> None:
        self.cancelled = cancelled or threading.Event()
        self.tell = tell
        self._title = ""
        self._range = (0.0, 1.0)
        self._done = 0.0
        self._left_s: float | None = None
        self.later_s = 0.0  # what comes after the part that reports how long it takes
        self.found: Any = None  # what a study makes of its rounds; Ctrl-C leaves that of those until then

    @contextlib.contextmanager
    def part(self, number: int, total: int, later_s: float = 0.0) -> Iterator[None]:
        """Scales the progress of part `number` of `total` to the whole; the parts after it take `later_s`."""
        low, high = self._range
        size = (high - low) / max(1, total)
        self._range = (low + number * size, low + (number + 1) * size)
        before_s = self.later_s
        self.later_s += later_s
        try:
            yield
        finally:
            self._range = (low, high)
            self.later_s = before_s

    def reach(self, fraction: float, title: str = "", left_s: float | None = None) -> None:
        """Notes that this fraction of the part is done; `title` is next, and at most `left_s` are left."""
        self._left_s = None if left_s is None else left_s + self.later_s
        low, high = self._range
        self._done = max(self._done, low + (high - low) * min(1.0, fraction))
        self._title = title or self._title

    def phase(self, phase: str) -> None:
        self.tell(Update(self._title, phase, self._done, left_s=self._left_s))

    def wait(self, who: str) -> None:
        """Reports that another measurement uses the device, so this one waits for it to end."""
        self.tell(Update(self._title, f"waiting: {who}", self._done, is_waiting=True))

    def share(self, phase: str, fraction: float) -> None:
        self.reach(fraction)
        self.phase(phase)

    def finish(self, run: Run) -> None:
        self.tell(Update(run.title, run.status, self._done, run))


@dataclass(frozen=True)
class Request:
    """What a source completes: None is replaced by its default."""

    workload: str | None
    preset: str | None
    stages: Sequence[str] | None
    device: str | None
    options: Mapping[str, Any]
    host: str | None


@dataclass(frozen=True)
class Subject:
    """What is trained, at which size, and where."""

    workload: str
    size: Size
    device: str
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    host: str | None = None  # of a device that is not here; None where the device's source decides
    code: str | None = None  # the digest of the code that every process must find; None until it is taken

    @property
    def kind(self) -> str:
        """The kind of its device: `cpu`, `cuda` or `mps`, without a number."""
        return self.device.partition(":")[0]


@dataclass(frozen=True)
class Ladder:
    """What is tried on a subject."""

    stages: tuple[str, ...]  # the stages above the baseline
    settings: Mapping[str, Value] = field(default_factory=dict)  # switches set from the baseline up
    changes: Mapping[str, Value] = field(default_factory=dict)
    """Switches of the stages above the first, in place of the ladder's values."""
    also: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)
    """What some stages change in addition, as the article did in one step."""
    below: bool = False
    """Whether it starts from the default ladder below its first stage, and not from the plain loop."""
    keep: tuple[str, ...] = ()  # stages that are kept even if they are not faster
    recipes: tuple[tuple[str, Recipe], ...] = ()
    """Titles and recipes to measure instead of stages; the first is the baseline of the others."""


class LadderFields(TypedDict, total=False):
    """Fields of a `Ladder`."""

    stages: tuple[str, ...]
    settings: Mapping[str, Value]
    changes: Mapping[str, Value]
    below: bool
    keep: tuple[str, ...]
    recipes: tuple[tuple[str, Recipe], ...]


@dataclass(frozen=True)
class Plan(Generic[SessionT_co]):
    """What is to be measured: checked, but nothing started yet. Its type says what session it opens."""

    subject: Subject
    ladder: Ladder
    rule: StopRule
    make_source: Callable[["Plan"], "Source[SessionT_co]"]
    timeout_s: float | None = None  # of the start of a stage, and of each of its slices
    recorded: str = ""
    """The name of the recording that is played; the subject's device is then the recorded one."""

    def source(self) -> "Source[SessionT_co]":
        return self.make_source(self.fixed())

    def fixed(self) -> Self:
        """This plan with its code as it is now: a process that finds a different one does not train it."""
        if self.subject.code or self.recorded:
            return self
        return self.with_code(workloads.digest(self.subject.workload))

    def with_code(self, code: str | None) -> Self:
        """This plan for the code that has this digest."""
        return replace(self, subject=replace(self.subject, code=code))

    @contextlib.contextmanager
    def open(
        self, progress: Progress | None = None, study: str = Study.LADDER, store: RunStore | None = None
    ) -> Iterator[SessionT_co]:
        """A session of its source, which must allow the study (`Source.require`), and is alone there.

        A/A noise is read from the `store`, and kept there. If a person presses Ctrl-C, it is raised after
        every process has ended.
        """
        progress = progress or Progress()
        source = self.source()
        source.require(study)
        with source.lock(progress), source.session(progress, store) as session:
            try:
                yield session
            finally:
                if isinstance(session.stopped, KeyboardInterrupt):
                    raise session.stopped

    def trying(self, **fields: Unpack[LadderFields]) -> Self:
        """This plan with other values of these fields of its ladder."""
        return replace(self, ladder=replace(self.ladder, **fields))

    def until(self, budget_s: float = 90.0, precision: float = 0.02, part: float = 0.0) -> Self:
        """This plan for so many seconds (0: a few rounds), to a precision (0: none) or part of an effect."""
        budget = Budget(budget_s) if budget_s else None
        goal = Goal(precision, part) if precision else None
        return replace(self, rule=replace(self.rule, budget=budget, goal=goal))

    def keeping(self, stages: Sequence[str]) -> Self:
        """This plan, where these stages are kept even if they are not faster."""
        names = [optimization(name).name for name in names_of(stages)]
        at_once = [name for name, parts in TOGETHER.items() if set(parts) <= set(self.ladder.stages)]
        for name in names:
            if name not in (*self.ladder.stages, *at_once):
                raise one_of(name, [*self.ladder.stages, *at_once], "stage of this ladder")
        return self.trying(keep=(*self.ladder.keep, *names))


@dataclass(frozen=True)
class Source(Generic[SessionT_co]):
    """Where runs come from, and what can be measured there. What is running belongs to its `Session`."""

    refused: ClassVar[Mapping[str, str]] = {}
    """Studies that would claim more than these runs can, with the reason."""
    is_costly: ClassVar[bool] = False  # whether each further stage that is measured takes more time
    plan: Plan
    reported: Description | None = None  # what the workload and the device report; None before they are asked

    @classmethod
    def checked(cls, request: Request) -> Plan:
        """A plan with this source's defaults; an `InvalidValue` names what is not allowed."""
        raise NotImplementedError

    @classmethod
    def menu(cls) -> dict[str, str]:
        """The places of this kind, in a panel's words, by device."""
        return {}

    def lock(self, progress: Progress) -> AbstractContextManager[None]:
        """Waits until no other measurement runs there, and makes others wait meanwhile."""
        return contextlib.nullcontext()

    def session(self, progress: Progress, store: RunStore | None) -> AbstractContextManager[SessionT_co]:
        """Loads the workload. The session's source is this one with what was reported then."""
        raise NotImplementedError

    @cached_property
    def description(self) -> Description:
        """What the workload and the device report; before they are asked, what the class declares."""
        if self.reported:
            return self.reported
        subject = self.plan.subject
        facts = DeviceFacts(bf16=devices.accelerators().bf16) if subject.kind == "cuda" else DeviceFacts()
        presets = workloads.declared(subject.workload, "presets") or {}
        offers = workloads.declared(subject.workload, "offers")
        if offers is None:  # it may offer any of them, and a run says what it does not
            offers = [name for name, switch in switches().items() if switch.needs == "workload"]
        return Description({**presets.get(subject.size.name, {}), **subject.options}, sorted(offers), facts)

    @property
    def target(self) -> Target:
        """Where the stages run, for the rules of the switches."""
        raise NotImplementedError

    def baseline(self) -> Recipe:
        """The plain program, with the plan's settings."""
        return Recipe(batch_size=self.plan.subject.size.batch_size).replace(**self.plan.ladder.settings)

    def stored(self) -> list[Run]:
        """Runs that exist already and are shown in place of measuring; most sources have none."""
        return []

    def require(self, study: str) -> None:
        """Refuses a study that would claim more than these runs can, with an `InvalidValue`."""
        if study in self.refused:
            what = f"{study} is refused on {self.plan.subject.device}: {self.refused[study]}"
            raise InvalidValue(what, "Use --device cpu or a real GPU")


@dataclass(eq=False)
class Session:
    """What a source is running. When the session is left, every process has ended."""

    source: Source
    progress: Progress
    store: RunStore | None = None
    stopped: BaseException | None = field(default=None, init=False)
    """What stopped the measuring, a person or the training's end; what was measured until then is kept."""

    def measure(self, stages: Sequence[Stage], rule: StopRule) -> list[Run]:
        """Measures stages in the same rounds, and returns a run for each, in their order.

        Every stage is compared with the first one; where measuring costs nothing, with the one before as
        well. A stage with a `reason` is not measured. A stage that fails does not stop the others.
        """
        raise NotImplementedError

    def ask_training(self, recipe: Recipe, question: str, warm: bool = True, **arguments: Any) -> Any:
        """The answer of a training, warm or just begun, to a question about the steps of a recipe.

        The question is an addition's (`Procedures.answer`), and so are its `arguments`.
        """
        raise NotImplementedError

    def ask(self, recipe: Recipe, question: str, **arguments: Any) -> Any:
        """The answer to a question of a new process, which has loaded the workload and trains nothing yet."""
        raise NotImplementedError
