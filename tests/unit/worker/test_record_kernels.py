"""Operators of real steps on the CPU, timed by a clock that is made up."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from perfkit.recipe import Recipe
from perfkit.simulate import recorded
from perfkit.simulate.recorded import KernelRecording
from perfkit.simulate.step import Step
from perfkit.worker.record_kernels import Recorder
from tests.support.toy import DeviceMemory, Toy

CPU = torch.device("cpu")
HERE = KernelRecording(
    gpu="v100", name="Tesla V100-SXM2-16GB", driver="1", torch="2.15.0", cuda="13", cudnn="9",
    created="2026-11-23", clock_mhz=None, overhead_s=0.0, complete=False,
)  # fmt: skip


class Timer:
    """Every call really happens; its time is made up."""

    def __init__(self, seconds: float = 2e-3, overhead: float = 1e-3) -> None:
        self.seconds, self.overhead, self.calls = seconds, overhead, list[int]()

    def __call__(self, work: Callable[[], Any], repeats: int) -> list[float]:
        nothing = work() is None
        if not nothing:
            self.calls.append(repeats)
        return [self.overhead if nothing else self.seconds] * repeats


class Clock:
    """A second passes whenever somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def recorder(timer: Timer | None = None, seconds: float = 1e9, **more: Any) -> Recorder:
    return Recorder(more.pop("recording", HERE), timer or Timer(), seconds, clock=Clock(), **more)


def planned(batch: int) -> Step:
    """In a process of its own: autograd must not have run before tensors without numbers are made."""
    script = f"""
from msgspec.json import encode
from perfkit.recipe import Recipe
from perfkit.simulate import operators
from tests.support.toy import Toy
print(encode(operators.of_training(Toy(), Recipe(batch_size={batch}))).decode())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return msgspec.json.decode(done.stdout.splitlines()[-1], type=Step)


RECIPES = [Recipe(batch_size=8), Recipe(batch_size=32)]


def test_operators_of_a_step_are_timed_once_each(tmp_path: Path) -> None:
    path = tmp_path / "v100.json"
    result = recorder(Timer()).record(Toy(), RECIPES, CPU, 0, path)
    found = recorded.load(path)
    names = [entry.name for entry in found.entries]
    assert (result.entries, result.new, result.complete) == (len(names), len(names), True)
    assert names.count("aten.addmm") == 4, "two layers, two batch sizes"
    assert {"aten.mm", "aten.relu", "aten.threshold_backward"} <= set(names)
    assert all(entry.seconds == pytest.approx(1e-3) for entry in found.entries), "less the overhead"
    assert all(entry.repeats == 25 for entry in found.entries), "0.05 s of 2 ms each"
    assert found.overhead_s == pytest.approx(1e-3)


def test_a_planned_step_finds_what_was_recorded(tmp_path: Path) -> None:
    """The plan of another batch size, between those that were recorded, by operators of the same names."""
    path = tmp_path / "v100.json"
    recipes = [recipe.replace(optimizer_impl="foreach") for recipe in RECIPES]  # a GPU's default
    recorder().record(Toy(), recipes, CPU, 0, path)
    times = recorded.Times(recorded.load(path))
    for batch, least in ((8, 0.99), (16, 0.9)):
        step = planned(batch)
        known = [times.seconds(operator, step) for operator in step.operators]
        missing = [one.name for one, seconds in zip(step.operators, known, strict=True) if seconds is None]
        assert len(missing) <= (1 - least) * len(known), missing


def test_it_goes_on_where_its_time_was_over(tmp_path: Path) -> None:
    path = tmp_path / "v100.json"
    first = recorder(seconds=5).record(Toy(), RECIPES, CPU, 0, path)
    assert not first.complete
    assert 0 < first.new < 10
    before = recorded.load(path)
    assert not before.complete
    second = recorder(recording=before).record(Toy(), RECIPES, CPU, 0, path)
    assert second.complete
    assert second.entries == first.new + second.new
    after = recorded.load(path)
    assert after.entries[: first.new] == before.entries
    third = recorder(recording=after).record(Toy(), RECIPES, CPU, 0, path)
    assert (third.new, third.complete) == (0, True)


def test_a_recipe_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    result = recorder().record(DeviceMemory(), RECIPES, CPU, 0, tmp_path / "v100.json")
    assert result.complete
    assert result.entries > 0
    assert result.skipped == {"baseline": "it does not fit into the device's memory"}


def test_precision_is_that_of_the_recipe_where_the_device_has_tf32(tmp_path: Path) -> None:
    path = tmp_path / "a100.json"
    recipes = [Recipe(batch_size=8, fp32_precision=precision) for precision in ("ieee", "tf32")]
    recorder(has_tf32=True).record(Toy(), recipes, CPU, 0, path)
    products = [entry.precision for entry in recorded.load(path).entries if entry.name == "aten.addmm"]
    assert sorted(products) == ["ieee", "ieee", "tf32", "tf32"]
    others = [entry for entry in recorded.load(path).entries if entry.name == "aten.relu"]
    assert len(others) == 1


def test_operators_that_take_long_are_repeated_less_often(tmp_path: Path) -> None:
    timer = Timer(seconds=1.0)
    recorder(timer).record(Toy(), RECIPES[:1], CPU, 0, tmp_path / "v100.json")
    assert set(timer.calls) == {1, 5}
