"""Stand-ins for measuring: what a panel would get from a study, without a process."""

import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from perfkit.errors import Cancelled
from perfkit.recipe import Recipe
from perfkit.results.parity import Check, Parity
from perfkit.results.run import Run
from perfkit.rules import Target, why_not
from perfkit.studies import ladder as ladders
from perfkit.studies import parity as proving
from perfkit.studies import plan as plans
from tests.unit.show.fake_runs import session

CPU = Target(device="cpu", offers=frozenset({"uint8_copy"}))


def on_cpu(name: str, recipe: Recipe) -> str:
    """Why a switch cannot act on the CPU."""
    return why_not(name, recipe, CPU)


class FakeStudy:
    """In the place of the study of a ladder: does what it is given, and remembers the plans."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, does: Callable[..., Any] | None = None) -> None:
        self.plans: list[plans.Plan] = []
        self.does = does or (lambda show, cancelled: session()[:2])
        monkeypatch.setattr(ladders, "measure_ladder", self)
        same = Parity("AMP", "bitwise", [Check("losses", True, "equal")], False, {})
        monkeypatch.setattr(proving, "parity", lambda *args, **named: same)
        monkeypatch.setattr(ladders, "stage_diffs", lambda *args: [("What it changes here", "-a\n+b\n")])

    def __call__(self, plan: plans.Plan, store: Any, on_progress: Any, cancelled: threading.Event) -> Any:
        self.plans.append(plan)
        return self.does(on_progress, cancelled)


def resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages of the toy ladder as they would run on this CPU, without the process that says so."""

    def resolve(plan: plans.Plan) -> Any:
        return None, list(ladders.ladder_stages(plan, CPU))

    monkeypatch.setattr(ladders, "resolve", resolve)
    monkeypatch.setattr(ladders, "switch_rule", lambda plan, described: on_cpu)


def until_cancelled(show: Any, cancelled: threading.Event) -> Any:
    """Work that only a stop ends, with one run finished before."""
    show(plans.Progress("baseline", "ok", 0.5, session()[0]))
    assert cancelled.wait(20)
    raise Cancelled("stopped on request")


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def plain(run: Run, **changes: Any) -> Run:
    """A made-up run as it comes out of the store: without NumPy's numbers."""
    return msgspec.json.decode(
        msgspec.json.encode(msgspec.structs.replace(run, **changes), enc_hook=float), type=Run
    )
