"""Plans: a process that stays, a cache that is never wrong, refusals with their reasons."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import Cancelled, InvalidValue, RunFailed, WorkloadError
from perfkit.recipe import Recipe
from perfkit.simulate import planner, planning
from perfkit.simulate.step import Step

WORKLOAD = """
import os
from tests.support.toy import Toy as _Toy
class Mine(_Toy):
    def dataset(self, recipe):
        print("words that must not come between the answers")
        return super().dataset(recipe)
class Dies(_Toy):
    def model(self):
        print("no more", file=__import__("sys").stderr, flush=True)
        os._exit(3)
class Wrong(_Toy):
    def loss(self, outputs, targets):
        raise KeyError("no such thing")
"""


@pytest.fixture
def folder(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a workload of the user's own, and an empty cache."""
    (tmp_path / "mine.py").write_text(WORKLOAD)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    return data_dir / "cache" / "plans"


def never(*_: Any) -> Any:
    raise AssertionError("planned, although it was in the cache")


def test_a_plan_is_made_once_and_again_after_a_death_and_when_its_source_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = planning.plan_step("mine:Mine", Recipe(batch_size=8))
    assert [op.name for op in first.operators][:3] == ["aten.addmm", "aten.relu", "aten.addmm"]
    assert first.samples == 8
    with monkeypatch.context() as patch:
        patch.setattr(planner.Planner, "ask", never)
        again = planning.plan_step("mine:Mine", Recipe(batch_size=8, workers=4))
        assert again == first, "workers are on the host: the device does the same"
        with pytest.raises(AssertionError, match="planned"):
            planning.plan_step("mine:Mine", Recipe(batch_size=16))
    with pytest.raises(RunFailed, match="ended with status 3: no more"):
        planning.plan_step("mine:Dies", Recipe())
    assert planning.plan_step("mine:Mine", Recipe()).samples == 32, "the next question starts another process"

    Path("mine.py").write_text(WORKLOAD.replace("os._exit(3)", "return None"))
    with monkeypatch.context() as patch:
        patch.setattr(planner.Planner, "ask", never)
        with pytest.raises(AssertionError, match="planned"):
            planning.plan_step("mine:Mine", Recipe(batch_size=8))
    assert planning.plan_step("mine:Mine", Recipe(batch_size=8)).operators[0].name == "aten.addmm"
    for plan in folder.iterdir():
        plan.write_bytes(plan.read_bytes()[:1000])
    assert planning.plan_step("mine:Mine", Recipe(batch_size=8)).samples == 8, "a damaged plan is made again"

    with pytest.raises(InvalidValue, match="KeyError: 'no such thing'"):
        planning.plan_step("mine:Wrong", Recipe())
    with pytest.raises(WorkloadError, match="no 'Missing'"):
        planning.plan_step("mine:Missing", Recipe())


def test_planning_can_be_stopped(folder: Path) -> None:
    stop = threading.Event()
    threading.Timer(0.2, stop.set).start()
    begun = time.monotonic()
    with pytest.raises(Cancelled):
        planning.plan_step("mine:Mine", Recipe(), cancelled=stop)
    assert stop.is_set()
    assert time.monotonic() - begun < 60, "the process is ended, whatever it was doing"


@pytest.mark.parametrize(
    ("switches", "words"),
    [
        ({"ranks": 2}, "several ranks"),
        ({"compile": True, "compile_mode": "max-autotune"}, "max-autotune"),
    ],
)
def test_what_is_not_modelled_is_refused(switches: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        planning.plan_step("cifar_resnet18", Recipe(**switches))


def test_the_cache_keeps_the_plans_that_were_used_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "MOST_PLANS", 3)
    step = Step(events=[], samples=1, torch="2.15.0")
    for number in range(5):
        planning._write(tmp_path / "plans" / f"{number}.json", planner.Planned(step, {}))
    assert len([*(tmp_path / "plans").iterdir()]) == 3
    assert (tmp_path / "plans" / "4.json").exists()
