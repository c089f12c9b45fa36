"""Two stored runs, compared as far as they can be."""

import msgspec
import pytest

from perfkit.additions.workbench.stored import compare_stored
from perfkit.errors import InvalidValue
from perfkit.results import stats
from perfkit.results.rounds import Pairing
from perfkit.results.run import Run
from perfkit.results.schema import Raw, Simulated
from perfkit.results.store import RunStore
from perfkit.studies.compare import Candidate, compare
from tests.unit.studies.conftest import machine, where  # noqa: F401


def test_runs_of_other_workloads_or_machines_are_not_compared(machine, where):
    result = compare(Candidate("A"), Candidate("B", {"batch_size": 64}), where, budget_s=0)
    model = Simulated(gpu="V100", host="article", model="1", constants="abc", band=0.15)
    others = {"device": "mps", "options": {"image_size": 64}, "machine": {"id": "m2"}, "simulated": model}
    for name, value in others.items():
        with pytest.raises(InvalidValue, match="differ in"):
            compare_stored(result.a, msgspec.structs.replace(result.b, **{name: value}))


def stored_run(name, rates, shares, **more):
    about = {"session": name, "created": "", "stage": "x", "workload": "w", "device": "cpu", "recipe": {}}
    return Run(id=name, **about, raw=Raw(block_samples_per_s=rates, disturbed=shares), **more)


@pytest.mark.usefixtures("data_dir")
def test_of_runs_that_were_measured_apart_each_side_counts_by_its_own_disturbance():
    clean, half = [100.0] * 10, [100.0] * 5 + [50.0] * 5
    a = stored_run("a", clean, [])
    b = stored_run("b", half, [0.0] * 5 + [0.5] * 5)
    ratios = compare_stored(a, b).ratio.ratio, compare_stored(b, a).ratio.ratio
    assert ratios == pytest.approx((1.0, 1.0), rel=0.01)


@pytest.mark.usefixtures("data_dir")
def test_the_spread_of_stored_runs_is_the_widest_that_is_known_of_them():
    a, b = stored_run("a", [100.0] * 5, []), stored_run("b", [100.0] * 5, [])
    assert compare_stored(a, b).pairing.spread == stats.UNKNOWN
    wide = stats.Spread(0.2, 4)
    one = Pairing([1.0], [1.0], against="z", role="baseline", interleaved=True, spread=wide)
    assert compare_stored(a, msgspec.structs.replace(b, pairings=[one])).pairing.spread == wide
    store = RunStore()
    store.add_noise("cpu", "default", False, [stats.AAPair(0.3, 0.0)] * 4)
    assert compare_stored(a, b, store).pairing.spread == store.spread("cpu")
