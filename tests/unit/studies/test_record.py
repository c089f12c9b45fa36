"""Runs from a worker's answers: derived fields, facts, and the warnings that say what to do."""

from __future__ import annotations

from typing import Any

import pytest

from perfkit.ladder.stages import Stage
from perfkit.machine import Program
from perfkit.recipe import Recipe
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
    culprit: float = 0.4, pairings: tuple[Pairing, ...] = (),
    disturbed: tuple[float, ...] = (), ceilings: tuple[float, ...] = (),
    **more: Any,
) -> Run:  # fmt: skip
    description = Description("m:W", {"size": 3}, [], DeviceFacts(threads=2, torch="2.15", uuid="GPU-1"))
    stage = Stage("amp", "AMP", RECIPE, not_applied={"pin_memory": "no GPU"})
    chosen = plan("cifar_resnet18", "smoke", ["amp"], device="cpu", seed=3)
    object.__setattr__(chosen, "device", device)
    builder = RunBuilder("s", stage, chosen, description)
    builder.culprit = Program("chrome (process 7)", culprit)
    shares, ceilings = disturbed or (0.0,) * len(rates), ceilings or ()
    measurement = Measurement(builder.id, trained(RECIPE, **more))
    for at, (rate, share) in enumerate(zip(rates, shares, strict=True)):
        ceiling = {builder.id: Block(8, 8 / ceilings[at])} if ceilings else {}
        blocks = {builder.id: Block(8, 8 / rate, [8 / rate], [0.0])}
        measurement.rounds.append(Round(blocks, ceiling, disturbed=share))
    measurement.peak = Peak(1000, None, recompiles)
    return builder.measured(measurement, list(pairings))


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


APART = Pairing([1.0], [1.0], against="x", role="previous", interleaved=False)


@pytest.mark.parametrize(
    ("given", "warning"),
    [
        ({"rates": (100.0, 130.0, 100.0, 130.0, 100.0)}, "blocks differ by more than 10%"),
        ({"rates": (100.0,) * 3}, "only 3 rounds: a smoke test"),
        ({"rates": (50.0, 100.0, 100.0, 100.0, 100.0)}, "warm-up was not over"),
        ({"pairings": (APART,)}, "not interleaved: they did not fit in memory together"),
        ({"recompiles": 1}, "was recompiled while it was measured"),
        (
            {"disturbed": (0.5,) * 3 + (0.0,) * 2},
            "other programs took 50% of the cores (chrome (process 7) 40%)",
        ),
        (
            {"disturbed": (0.5,) * 5, "culprit": 0.1},
            "others took 50% of the cores (no program here took much",
        ),
        ({"ceilings": (90.0,) * 5}, "the ceiling came out below the rate"),
    ],
)
def test_a_result_judges_itself(given: dict[str, Any], warning: str) -> None:
    (found,) = build(**given).warnings
    assert warning in found


def test_a_first_round_that_others_disturbed_is_no_sign_of_a_short_warm_up() -> None:
    slow_first = (50.0,) + (100.0,) * 5
    assert build(rates=slow_first, disturbed=(0.5,) + (0.0,) * 5).warnings == []
    assert "warm-up" in build(rates=slow_first, disturbed=(0.0,) * 6).warnings[0]


def test_rounds_that_others_disturbed_are_left_out_and_that_is_a_fact() -> None:
    run = build(rates=(100.0,) * 5 + (50.0,) * 2, disturbed=(0.0,) * 5 + (0.06,) * 2)
    assert run.samples_per_s
    assert run.samples_per_s.value == pytest.approx(100.0)
    assert run.step_s
    assert run.step_s.high == pytest.approx(0.08)
    assert run.disturbed is None
    assert run.facts["rounds left out"] == "2 of 7, disturbed by other programs"
    assert run.raw.block_samples_per_s == pytest.approx([100.0] * 5 + [50.0] * 2), "nothing is thrown away"
