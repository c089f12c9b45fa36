"""A measuring machine without processes: children that answer at once, from a table of rates."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from perfkit.errors import Cancelled, RunFailed
from perfkit.recipe import Recipe
from perfkit.results.run import Mechanism
from perfkit.studies import heat, record, setup
from perfkit.worker import messages

FIRST, WARM = messages.Block(8, 2.0, [2.0], [0.5]), messages.Block(16, 1.0, [0.5, 0.5], [0.1, 0.1])


class FakeMachine:
    """Starts `FakeChild`ren and remembers what they were asked: (number of the child, command)."""

    def __init__(self, rate: Callable[[Recipe], float] = lambda recipe: 100.0) -> None:
        self.rate = rate
        self.asked: list[tuple[int, messages.Command[Any]]] = []
        self.children: list[FakeChild] = []
        self.fails: Callable[[FakeChild, messages.Command[Any]], Exception | None] = lambda child, command: (
            None
        )
        self.mechanisms: list[Mechanism] = []
        self.rate_of: Callable[[FakeChild], float] = lambda child: 1.0
        """A factor for each process: equal ones differ."""
        self.taken: Callable[[], float] = lambda: 0.0
        """The share of the cores that others take during the next block."""

    def start(
        self, on_progress: Any = None, cancelled: threading.Event | None = None, deadline: float | None = None
    ) -> FakeChild:
        self.children.append(FakeChild(self, len(self.children), on_progress, cancelled, deadline))
        return self.children[-1]

    def blocks(self) -> list[int]:
        """The children that measured a block, in the order of time."""
        return [number for number, command in self.asked if isinstance(command, messages.MeasureBlock)]

    def alive(self) -> list[int]:
        return [child.number for child in self.children if not child.stopped]


class FakeChild:
    def __init__(
        self, machine: FakeMachine, number: int, on_progress: Any, cancelled: threading.Event | None,
        deadline: float | None,
    ) -> None:  # fmt: skip
        self.machine, self.number, self.started, self.deadline = machine, number, 0.0, deadline
        self.stopped = 0
        self.workload = ""
        self.recipe = Recipe()
        self.on_progress, self.cancelled = on_progress, cancelled
        self.pids: list[int] = []

    def ask(self, command: messages.Command[Any]) -> Any:
        assert not self.stopped, f"{command} was asked of a child that has ended"
        self.machine.asked.append((self.number, command))
        self.on_progress(type(command).__name__, 0.0)
        if self.cancelled and self.cancelled.is_set():
            raise Cancelled("stopped on request")
        if failure := self.machine.fails(self, command):
            raise failure
        return self._answer(command)

    def _answer(self, command: messages.Command[Any]) -> Any:
        match command:
            case messages.Describe():
                self.workload = command.workload
                facts = messages.DeviceFacts(threads=2, torch="2.15")
                return messages.Description("m:W", dict(command.options), ["uint8_copy"], facts)
            case messages.Train():
                self.recipe = Recipe.from_dict(command.recipe)
                return trained(self.recipe, self.machine.mechanisms)
            case messages.MeasureBlock() | messages.MeasureCeiling():
                rate = self.machine.rate(self.recipe) * self.machine.rate_of(self)
                rate *= 2 if isinstance(command, messages.MeasureCeiling) else 1
                seconds = command.samples / rate
                return messages.Block(command.samples, seconds, [seconds / 2] * 2, [seconds / 8] * 2)
            case messages.ReadPeak():
                return messages.Peak(1000 * self.recipe.batch_size, None, 0)
        raise AssertionError(command)

    def stop(self) -> None:
        self.stopped += 1


def trained(recipe: Recipe, mechanisms: list[Mechanism] | None = None, **more: Any) -> messages.Trained:
    """What a child says of a training that is warm."""
    fields: dict[str, Any] = {
        "recipe": recipe.to_dict(), "startup_s": 1.5, "first": FIRST, "warm": WARM, "losses": [2.3, 2.2],
        "mechanisms": mechanisms or [], "batch_bytes_per_sample": 48, "samples_per_step": recipe.batch_size,
        "compiled": recipe.compile, "compile_counters": messages.CompileCounters(0, 0, 0, 0),
        "data_on_device": False, "batch_norm": False, "weights": "", "malloc": "",
    }  # fmt: skip
    return messages.Trained(**{**fields, **more})


def out_of_memory() -> RunFailed:
    failure = RunFailed("no memory", "lower batch_size")
    failure.kind = "out of memory"
    return failure


def install(monkeypatch: pytest.MonkeyPatch, machine: FakeMachine) -> FakeMachine:
    """Every child of every setup is the machine's."""
    monkeypatch.setattr(setup, "Child", machine.start)
    monkeypatch.setattr(record.machine, "facts", lambda: {"id": "m1", "cpu": {"cores_usable": 2}})
    monkeypatch.setattr(record.machine, "read_conditions", lambda: {})
    monkeypatch.setattr(heat.machine, "taken_share", lambda before, after: machine.taken())
    chrome = heat.machine.Program("chrome (process 7)", 0.38)
    monkeypatch.setattr(heat.machine.OtherPrograms, "busiest", lambda self, pids: chrome)
    return machine
