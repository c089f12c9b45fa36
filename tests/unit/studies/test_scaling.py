"""Several ranks: efficiency, the ring, the command for a cluster."""

from typing import Any

import msgspec
import pytest

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.results.run import Communication, Raw, Run
from perfkit.studies import scaling

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
    assert scaling.efficiency(run(1, 100), run(4, 320)) == pytest.approx(0.8)
    with pytest.raises(InvalidValue, match="one rank and one of several"):
        scaling.efficiency(run(2, 100), run(4, 320))


def test_a_ring_all_reduce_has_two_rounds_of_hops() -> None:
    assert scaling.ring_all_reduce_s(1e9, 4, latency_s=0.001, bytes_per_s=1e9) == pytest.approx(6e-3 + 1.5)


def test_the_forecast_gives_back_what_was_measured_and_falls_with_ranks() -> None:
    measured = run(2, 100, communication=COMMUNICATION)
    efficiency = scaling.forecast(measured)
    exposed = 0.5 * scaling.ring_all_reduce_s(4e7, 2, 0.0005, 1e9)
    assert efficiency[1] == 1.0
    assert efficiency[2] == pytest.approx(0.10 / (0.10 + exposed))
    assert list(efficiency) == [1, 2, 4, 8, 16, 32, 64]
    assert list(efficiency.values()) == sorted(efficiency.values(), reverse=True)
    fast = scaling.forecast(measured, latency_s=0.0, bytes_per_s=1e15)
    assert fast[64] == pytest.approx(1.0)


def test_one_rank_has_no_forecast() -> None:
    with pytest.raises(InvalidValue, match="nothing was communicated"):
        scaling.forecast(msgspec.structs.replace(run(1, 100)))


def test_the_command_for_a_cluster() -> None:
    assert scaling.torchrun("train.py", 16, 2) == (
        "torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST:29400 train.py"
    )
    assert scaling.torchrun("my train.py", 2) == (
        "torchrun --nnodes 1 --nproc-per-node 2 --standalone 'my train.py'"
    )
    with pytest.raises(InvalidValue, match="cannot be split"):
        scaling.torchrun("train.py", 3, 2)
