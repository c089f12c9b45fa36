"""Runs from a worker's answers: derived fields, facts, and the warnings that say what to do."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.ladder.stages import Stage
from perfkit.program.recipe import Recipe
from perfkit.results.run import Pairing, Run
from perfkit.studies import record
from perfkit.studies.plan import plan
from perfkit.studies.record import Measurement, Round, RunBuilder
from perfkit.worker.messages import Block, CompileCounters, Description, DeviceFacts, Peak
from tests.unit.studies.fakes import trained

RECIPE = Recipe(batch_size=8)


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record.machine, "facts", lambda: {"id": "m1"})
    monkeypatch.setattr(record.machine, "read_conditions", lambda: {})


def build(
    rates: tuple[float, ...] = (100.0,) * 5, device: str = "cpu", recompiles: int = 0,
    pairings: tuple[Pairing, ...] = (), **more: Any,
) -> Run:  # fmt: skip
    blocks = [Block(8, 8 / rate, [8 / rate], [0.0]) for rate in rates]
    measurement = Measurement(trained(RECIPE, **more), [Round(block, None, {}) for block in blocks])
    measurement.peak = Peak(1000, None, recompiles)
    description = Description("m:W", {"size": 3}, [], DeviceFacts(threads=2, torch="2.15", uuid="GPU-1"))
    stage = Stage("amp", "AMP", RECIPE, not_applied={"pin_memory": "no GPU"})
    chosen = plan("cifar_resnet18", "smoke", ["amp"], device="cpu", seed=3)
    object.__setattr__(chosen, "device", device)
    return RunBuilder("s", stage, chosen, description).measured(measurement, list(pairings))


def test_a_run_says_what_was_trained_where() -> None:
    run = build()
    assert (run.session, run.stage, run.title, run.seed) == ("s", "amp", "AMP", 3)
    assert (run.workload, run.options, run.preset, run.device) == ("m:W", {"size": 3}, "smoke", "cpu")
    assert run.machine["device"] == {"threads": "2", "torch": "2.15", "uuid": "GPU-1"}
    assert run.facts == {"not applied: pin_memory": "no GPU"}
    assert run.peak_memory_bytes == 1000
    assert run.peak_reserved_bytes is None
    assert run.warnings == []


def test_compile_time_is_known_from_what_was_compiled_not_from_words() -> None:
    assert build().compile_s is None
    counters = CompileCounters(1, 0, 1, 0)
    run = build(compiled=True, compile_counters=counters)
    assert run.compile_s == pytest.approx(2.0 - 0.08), "the first step, less a steady one"
    assert run.facts["compile cache"] == "warm"


@pytest.mark.parametrize(
    ("device", "on_device", "crossing"), [("cpu", False, None), ("cuda", False, 48), ("cuda", True, 0)]
)
def test_bytes_cross_only_to_an_accelerator(device: str, on_device: bool, crossing: int | None) -> None:
    run = build(device=device, data_on_device=on_device)
    assert run.h2d_bytes_per_sample == crossing
    assert run.batch_bytes_per_sample == 48


APART = Pairing("x", "previous", False, [1.0], [1.0])


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"rates": (100.0, 130.0, 100.0, 130.0, 100.0)}, "blocks differ by more than 10%"),
        ({"rates": (100.0,) * 3}, "only 3 rounds: a smoke test"),
        ({"rates": (50.0, 100.0, 100.0, 100.0, 100.0)}, "warm-up was not over"),
        ({"pairings": (APART,)}, "not interleaved: they did not fit in memory together"),
        ({"recompiles": 1}, "was recompiled while it was measured"),
    ],
)
def test_a_result_judges_itself(given: dict[str, Any], warning: str) -> None:
    (found,) = build(**given).warnings
    assert warning in found
