"""Simulated and measured runs are never one: their verdicts, their guards, their record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit.errors import InvalidValue
from perfkit.results import noise, run, stats
from perfkit.results.pairing import Pairing
from perfkit.results.run import Raw, Run
from perfkit.results.simulated import Simulated, is_simulated, refuse, same_basis

KNOWN = Simulated(gpu="V100", host="article", model="1", constants="abc", band=0.15, kernel_s=0.09)


def simulated(**changes: Any) -> Run:
    fields: dict[str, Any] = {
        "id": "1", "session": "s", "created": "2026-11-23T00:00:00+00:00", "stage": "baseline",
        "workload": "m:W", "device": "sim:v100", "recipe": {}, "simulated": KNOWN, "samples_per_step": 10,
        "raw": Raw(step_s=[0.1], block_samples_per_s=[100.0], block_steps=[1]),
    }  # fmt: skip
    return Run(**fields | changes)


def pairing(ratio: float, band: float | None, rounds: int = 1, computed: bool = True) -> Pairing:
    return Pairing(
        [100.0 * ratio] * rounds, [100.0] * rounds, against="0", role="previous", interleaved=True, band=band,
        computed=computed,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("ratio", "band", "verdict"),
    [
        (1.5, 0.2, "predicted faster"),
        (1.5, 0.6, "too close to predict"),
        (0.5, 0.2, "predicted slower"),
        (1.005, 0.0, "too close to predict"),
    ],
)
def test_the_model_s_error_decides_the_verdict(ratio: float, band: float, verdict: str) -> None:
    found = pairing(ratio, band).ratio
    assert found.verdict == verdict
    assert found.ratio == pytest.approx(ratio)
    assert found.low == pytest.approx(ratio / (1 + band))
    assert found.high == pytest.approx(ratio * (1 + band))
    assert found.is_faster == (verdict == "predicted faster")
    assert found.is_slower == (verdict == "predicted slower")


def test_scatter_and_error_add_up_and_few_rounds_give_no_verdict() -> None:
    rates = [150.0, 140.0, 160.0, 145.0, 155.0]
    scattered = Pairing(rates, [100.0] * 5, against="0", role="previous", interleaved=True)
    alone, both = scattered.ratio, msgspec.structs.replace(scattered, band=0.2).ratio
    assert both.low < alone.low
    assert both.low < both.ratio / 1.2
    assert pairing(1.5, 0.1, rounds=3, computed=False).ratio.verdict == "too few rounds"
    assert pairing(1.5, 0.1).minutes_to_show() is None


def test_a_rate_holds_the_model_s_error() -> None:
    rate = simulated().samples_per_s
    assert rate is not None
    assert (rate.value, rate.low, rate.high) == pytest.approx((100.0, 100 / 1.15, 115.0))
    assert simulated().utilization == pytest.approx(0.9)
    assert msgspec.structs.replace(simulated(), simulated=None).utilization is None


def test_a_record_holds_what_it_rests_on() -> None:
    one = simulated()
    assert run.decode(run.encode(one)) == one
    assert run.document([one])["simulated"] is True
    assert run.summary(one)["simulated"]["constants"] == "abc"


def test_what_does_not_rest_on_the_same_is_not_compared() -> None:
    same_basis(None, None)
    same_basis(KNOWN, msgspec.structs.replace(KNOWN, band=0.5))
    with pytest.raises(InvalidValue, match="one run is simulated and the other was measured"):
        same_basis(KNOWN, None)
    for name in ("gpu", "host", "model", "constants"):
        other = msgspec.structs.replace(KNOWN, **{name: "other"})
        with pytest.raises(InvalidValue, match="simulated differently: .* other"):
            same_basis(KNOWN, other)


def test_studies_that_would_claim_too_much_are_refused_there_only(data_dir: Path) -> None:
    assert is_simulated("sim:v100")
    assert not is_simulated("cuda:0")
    refuse("cpu", "tuning", "because")
    with pytest.raises(InvalidValue, match="tuning is refused on sim:v100: because"):
        refuse("sim:v100", "tuning", "because")
    with pytest.raises(InvalidValue, match="A/A noise"):
        noise.add("sim:v100", [stats.AAPair(0.0, 0.0)])
    assert noise.load("sim:v100") is None
