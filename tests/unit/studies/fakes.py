"""A measuring machine without processes: children that answer at once, from a table of rates."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from perfkit.errors import Cancelled, RunFailed
from perfkit.recipe import Recipe
from perfkit.results.run import Mechanism
from perfkit.studies import here, loop, record
from perfkit.worker import messages

FIRST, WARM = messages.Block(8, 2.0, [2.0], [0.5]), messages.Block(16, 1.0, [0.5, 0.5], [0.1, 0.1])


class FakeMachine:
    """Starts `FakeChild`ren and remembers what they were asked: (number of the child, question)."""

    def __init__(self, rate: Callable[[Recipe], float] = lambda recipe: 100.0) -> None:
        self.rate = rate
        self.asked: list[tuple[int, str]] = []
        self.trainings: list[dict[str, Any]] = []
        self.children: list[FakeChild] = []
        self.fails: Callable[[FakeChild, str], Exception | None] = lambda child, question: None
        self.mechanisms: list[Mechanism] = []
        self.rate_of: Callable[[FakeChild], float] = lambda child: 1.0
        """A factor for each process: equal ones differ."""
        self.taken: Callable[[], float] = lambda: 0.0
        """The share of the cores that others take during the next block."""

    def start(
        self,
        on_progress: Any = None,
        cancelled: threading.Event | None = None,
        deadline: float | None = None,
        environment: Mapping[str, str] | None = None,
        ranks: int = 1,
    ) -> "FakeChild":
        self.children.append(FakeChild(self, len(self.children), on_progress, cancelled, deadline))
        return self.children[-1]

    def blocks(self) -> list[int]:
        """The children that measured a block, in the order of time."""
        return [number for number, question in self.asked if question == "block"]

    def alive(self) -> list[int]:
        return [child.number for child in self.children if not child.stopped]


class FakeChild:
    def __init__(
        self,
        machine: FakeMachine,
        number: int,
        on_progress: Any,
        cancelled: threading.Event | None,
        deadline: float | None,
    ) -> None:
        self.machine, self.number, self.deadline = machine, number, deadline
        self.stopped = 0
        self.recipe = Recipe()
        self.on_progress, self.cancelled = on_progress, cancelled
        self.on_steps: Any = None
        self.pids: list[int] = []

    def ask(self, question: str, kind: type, **arguments: Any) -> Any:
        assert not self.stopped, f"{question} was asked of a child that has ended"
        self.machine.asked.append((self.number, question))
        self.on_progress(question, 0.0)
        if self.cancelled and self.cancelled.is_set():
            raise Cancelled("stopped on request")
        if failure := self.machine.fails(self, question):
            raise failure
        answer = self.answer(question, arguments)
        assert isinstance(answer, kind)
        return answer

    def answer(self, question: str, arguments: dict[str, Any]) -> Any:
        match question:
            case "describe":
                facts = messages.DeviceFacts(threads=2, torch="2.15")
                return messages.Description("m:W", dict(arguments["options"]), ["uint8_copy"], facts)
            case "train":
                self.machine.trainings.append(arguments)
                self.recipe = Recipe.from_dict(arguments["recipe"])
                return trained(self.recipe, self.machine.mechanisms)
            case "block" | "ceiling":
                rate = self.machine.rate(self.recipe) * self.machine.rate_of(self)
                seconds = arguments["samples"] / rate / (2 if question == "ceiling" else 1)
                return messages.Block(arguments["samples"], seconds, [seconds / 2] * 2, [seconds / 8] * 2)
            case "peak":
                return messages.Peak(1000 * self.recipe.batch_size, None, 0)
        raise AssertionError(question)

    def stop(self) -> None:
        self.stopped = 1


def trained(recipe: Recipe, mechanisms: list[Mechanism] | None = None, **more: Any) -> messages.Trained:
    """What a child says of a training that is warm."""
    fields: dict[str, Any] = {
        "recipe": recipe.to_dict(),
        "startup_s": 1.5,
        "first": FIRST,
        "warm": WARM,
        "losses": [2.3, 2.2],
        "mechanisms": mechanisms or [],
        "batch_bytes_per_sample": 48,
        "samples_per_step": recipe.batch_size,
        "compile_counters": messages.CompileCounters(graphs=int(recipe.compile)),
        "batch_norm": False,
    }
    return messages.Trained(**{**fields, **more})


def out_of_memory() -> RunFailed:
    failure = RunFailed("no memory", "lower batch_size")
    failure.kind = "out of memory"
    return failure


def install(monkeypatch: pytest.MonkeyPatch, machine: FakeMachine) -> FakeMachine:
    """Every child of this machine is the fake machine's."""
    monkeypatch.setattr(here, "Child", machine.start)
    monkeypatch.setattr(here.server, "restart", lambda: None)
    monkeypatch.setattr(record.machine, "facts", lambda: {"id": "m1", "gpus": [], "cpu": {"cores_usable": 2}})
    monkeypatch.setattr(record.machine, "read_conditions", lambda: {})
    monkeypatch.setattr(loop.machine, "taken_share", lambda before, after: machine.taken())
    chrome = loop.machine.Program("chrome (process 7)", 0.38)
    monkeypatch.setattr(loop.machine.OtherPrograms, "busiest", lambda self, pids: chrome)
    return machine
