"""What more ranks would give, in closed form; the command for a cluster; which placement is possible."""

from __future__ import annotations

import pytest

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.results.run import Communication, Raw, Run
from perfkit.studies import scaling

MEASURED = Communication(
    bytes_per_step=50 << 20, step_s=0.130, compute_s=0.100, alone_s=0.060, rank_compute_s=[0.1, 0.12],
    start_s=0.0004, bytes_per_s=1e9,
)  # fmt: skip


def run(ranks: int, rate: float, found: Communication | None = None) -> Run:
    return Run(
        id=f"r{ranks}", session="s", created="", stage="x", title=f"{ranks} ranks", workload="m:W",
        device="cpu",
        recipe=Recipe(ranks=ranks).to_dict(), raw=Raw(block_samples_per_s=[rate] * 5), communication=found,
    )  # fmt: skip


def test_what_is_not_exposed_was_hidden() -> None:
    assert MEASURED.exposed_s == pytest.approx(0.030)
    assert MEASURED.hidden_s == pytest.approx(0.030)
    assert MEASURED.straggling == pytest.approx(0.12 / 0.11)


def test_efficiency_is_of_a_rank_over_one_alone() -> None:
    assert scaling.efficiency(run(1, 100), run(2, 150, MEASURED)) == pytest.approx(0.75)
    with pytest.raises(InvalidValue, match="one rank and one of several"):
        scaling.efficiency(run(2, 100), run(2, 150))


def test_the_forecast_is_that_of_a_ring() -> None:
    """By hand: alpha = 0.0004 / 2, beta = 1e9 * 2 * 1 / 2, two buckets of 25 MiB, half of it exposed."""
    rows = {row.ranks: row for row in scaling.forecast(run(2, 1, MEASURED))}
    alpha, beta, size = 0.0002, 1e9, 50 << 20
    for ranks in (1, 2, 8, 1024):
        wanted = 2 * 2 * (ranks - 1) * alpha + 2 * (ranks - 1) / ranks * size / beta
        assert rows[ranks].communication_s == pytest.approx(wanted)
        assert rows[ranks].step_s == pytest.approx(0.1 + 0.5 * wanted)
        assert rows[ranks].efficiency == pytest.approx(0.1 / (0.1 + 0.5 * wanted))
    assert rows[1].efficiency == 1


def test_another_network_can_be_planned_for() -> None:
    (row,) = scaling.forecast(run(2, 1, MEASURED), [1000], latency_s=0.0, bytes_per_s=1e10)
    assert row.communication_s == pytest.approx(2 * 999 / 1000 * (50 << 20) / 1e10)
    with pytest.raises(InvalidValue, match="one rank"):
        scaling.forecast(run(1, 1))


def test_the_command_for_a_cluster() -> None:
    assert scaling.torchrun("train.py", 8) == ("torchrun --nnodes 1 --nproc-per-node 8 --standalone train.py")
    assert "--nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint a:1" in (
        scaling.torchrun("my train.py", 16, 2, "a:1")
    )
    with pytest.raises(InvalidValue, match="3 ranks"):
        scaling.torchrun("train.py", 3, 2)
