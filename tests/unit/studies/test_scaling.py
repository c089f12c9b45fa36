"""Several ranks: efficiency, the ring, the command for a cluster."""

from typing import Any

import msgspec
import pytest

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.results.run import Communication, Raw, Run
from perfkit.studies import compare

COMMUNICATION = Communication(
    bytes_per_step=40_000_000,
    step_s=0.11,
    compute_s=0.10,
    alone_s=0.02,
    rank_compute_s=[0.10, 0.10],
    start_s=0.001,
    bytes_per_s=1e9,
)


def run(ranks: int, rate: float, **more: Any) -> Run:
    return Run(
        id="r", session="s", created="", stage="x", title="X", workload="w", device="cpu",
        recipe=Recipe(ranks=ranks).to_dict(), raw=Raw(block_samples_per_s=[rate]), **more,
    )  # fmt: skip


def test_efficiency_is_the_rate_of_a_rank_over_that_of_one_alone() -> None:
    assert compare.efficiency(run(1, 100), run(4, 320)) == pytest.approx(0.8)
    with pytest.raises(InvalidValue, match="one rank and one of several"):
        compare.efficiency(run(2, 100), run(4, 320))


def test_the_forecast_gives_back_what_was_measured_and_falls_with_ranks() -> None:
    measured = run(2, 100, communication=COMMUNICATION)
    efficiency = compare.forecast(measured)
    exposed = 0.5 * (2 * 0.0005 + 2 / 2 * 4e7 / 1e9)
    assert efficiency[1] == 1.0
    assert efficiency[2] == pytest.approx(0.10 / (0.10 + exposed))
    assert list(efficiency) == [1, 2, 4, 8, 16, 32, 64]
    assert list(efficiency.values()) == sorted(efficiency.values(), reverse=True)
    fast = compare.forecast(measured, latency_s=0.0, bytes_per_s=1e15)
    assert fast[64] == pytest.approx(1.0)


def test_one_rank_has_no_forecast() -> None:
    with pytest.raises(InvalidValue, match="nothing was communicated"):
        compare.forecast(msgspec.structs.replace(run(1, 100)))
