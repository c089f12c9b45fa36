"""Several ranks: their scaling, its forecast, and the table of their communication."""

import msgspec
import pytest

from perfkit.additions.ranks import scaling
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.results.run import Run
from perfkit.results.schema import Communication, Raw
from perfkit.show import tables, terminal
from tests.unit.show.fake_runs import session

TIMES = Communication(
    bytes_per_step=44_000_000,
    step_s=0.05,
    compute_s=0.04,
    alone_s=0.02,
    rank_compute_s=[0.04, 0.044],
    start_s=1e-5,
)


def ranked(ranks, rate, **more):
    about = {"id": "r", "session": "s", "created": "", "stage": "x", "workload": "w", "device": "cpu"}
    recipe = Recipe(ranks=ranks).to_dict()
    return Run(**about, title="X", recipe=recipe, raw=Raw(block_samples_per_s=[rate]), **more)


def test_efficiency_is_the_rate_of_a_rank_over_that_of_one_alone():
    assert scaling.efficiency(ranked(1, 100), ranked(4, 320)) == pytest.approx(0.8)
    with pytest.raises(InvalidValue, match="one rank and one of several"):
        scaling.efficiency(ranked(2, 100), ranked(4, 320))


def test_the_forecast_gives_back_what_was_measured_and_falls_with_ranks():
    communication = Communication(
        bytes_per_step=40_000_000,
        step_s=0.11,
        compute_s=0.10,
        alone_s=0.02,
        rank_compute_s=[0.10, 0.10],
        start_s=0.001,
    )
    efficiency = scaling.forecast(ranked(2, 100, communication=communication))
    assert efficiency[1] == 1.0
    assert efficiency[2] == pytest.approx(0.10 / 0.11)
    assert list(efficiency.values()) == sorted(efficiency.values(), reverse=True)
    link = scaling.forecast(ranked(2, 100, communication=communication), latency_s=0.0005, bytes_per_s=1e9)
    assert link[4] == pytest.approx(0.10 / (0.10 + 0.5 * (6 * 0.0005 + 6 / 4 * 4e7 / 1e9)))
    with pytest.raises(InvalidValue, match="nothing was communicated"):
        scaling.forecast(ranked(1, 100))


def test_a_report_has_the_communication_of_the_runs_that_had_some():
    run, other = session()[:2]
    ranked = msgspec.structs.replace(run, communication=TIMES)
    (table,) = scaling.sections([ranked, other])
    assert (table.title, len(table.rows)) == ("Communication", 1)
    (row,) = [line for line in terminal.text([table]).splitlines() if "44" in line]
    assert "50.0 ms" in row and "10.0 ms" in row and "44.0 MB" in row and "1.05" in row, row
    assert table in tables.sections([ranked, other]) and scaling.sections([other]) == []
