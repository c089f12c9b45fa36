"""The virtual machine: streams, the loader, links, and the error that comes with it."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
from msgspec import structs

from perfkit.additions.simulate import host
from perfkit.additions.simulate.costs import GPUS
from perfkit.additions.simulate.host import ARTICLE, IDEAL, RUN_AHEAD, Host, SimulatedTraining
from perfkit.additions.simulate.prediction import Prediction
from perfkit.additions.simulate.step import Copy, Fetch, OperatorCall, Wait, Work
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from tests.unit.additions.simulate import plans

HOST = Host(name="test", processors=4, cores=4, fetch_ms=1.0, pageable_gbs=1.0, operator_s=0.0, launch_s=0.0)


def kernel(seconds, stream=0):
    operator = OperatorCall("aten.mm", "forward", [], [], stream=stream)
    return operator, [(Work("gemm", 0.0), seconds)]


def outcome(around=HOST, copy=True, **switches):
    """A training of one kernel of 20 ms, in its steady state."""
    recipe = Recipe(batch_size=32).replace(**switches)
    batch = Copy(10_000_000, pinned=recipe.pin_memory, non_blocking=recipe.non_blocking)
    actions = [(Fetch(), []), *[(batch, [])] * copy, kernel(20e-3 if copy else 1e-6)]
    return SimulatedTraining(around, recipe, 1e-3, 10.0).steady(actions)


def done(*actions):
    """A training that has issued some events."""
    training = SimulatedTraining(HOST, Recipe(), 0.0, 10.0)
    for action in actions:
        training.do(*action if isinstance(action, tuple) else (action,))
    return training


ITEM, ORDER = Wait(), Wait((0, 1))
QUEUED = {
    "kernels run behind the host": ([kernel(1.0)], 0.0),
    "reading waits for its own stream": ([kernel(1.0), kernel(5.0, stream=1), ITEM], 1.0),
    "a stream waits for another": ([kernel(3.0, stream=1), ORDER, kernel(1.0), ITEM], 4.0),
    "a pageable copy waits for the kernels": ([kernel(1.0), Copy(10**9)], 2.0),
    "a pinned copy has the link's speed": ([kernel(1.0), Copy(10**9, pinned=True)], 1.1),
    "one that blocks nothing overlaps": ([kernel(1.0), Copy(10**9, pinned=True, non_blocking=True)], 0.0),
    "the driver's queue is finite": ((RUN_AHEAD + 10) * [kernel(1e-3)], 10e-3),
}


@pytest.mark.parametrize(("actions", "now"), QUEUED.values(), ids=QUEUED)
def test_the_hosts_time_passes_where_it_must_wait(actions, now):
    assert done(*actions).now == pytest.approx(now, abs=1e-4)


def test_two_streams_share_the_gpu():
    training = done(*10 * [kernel(1.0, stream=1), kernel(1.0)])
    assert max(training._free.values()) == pytest.approx(20.0, rel=0.1), "as much work as on one stream"


@pytest.mark.parametrize(
    ("switches", "step_s", "wait_s"),
    [
        ({"workers": 0}, 32e-3 + 10e-3, 32e-3),  # fetch, then a pageable copy; kernels run meanwhile
        ({"workers": 4}, 20e-3 + 10e-3, 0.0),  # the copy waits for the kernels
        ({"workers": 1}, 32e-3, 32e-3 - 10e-3),  # the loader decides
        ({"workers": 4, "pin_memory": True, "non_blocking": True}, 20e-3 + 1e-3, 0.0),  # one after the other
    ],
)
def test_a_training_takes_what_its_slowest_part_takes(switches, step_s, wait_s):
    steady = outcome(**switches)
    assert steady.step_s == pytest.approx(step_s, rel=0.05)
    assert steady.data_wait_s == pytest.approx(wait_s, abs=1.5e-3)


def test_more_workers_than_cores_do_not_load_faster():
    four, eight = (outcome(copy=False, workers=workers).step_s for workers in (4, 8))
    assert four == pytest.approx(eight, rel=0.02)


def test_an_ideal_host_takes_the_kernels_time():
    assert outcome(IDEAL).step_s == pytest.approx(20e-3)


def test_an_operator_takes_as_long_on_an_ideal_host_as_on_its_own():
    """Else the ceiling of a loop that waits for its host would be above what the host can launch."""
    own = plans.prediction()
    slow = dataclasses.replace(own, host=structs.replace(ARTICLE, operator_s=1.0))
    operators = sum(isinstance(event, OperatorCall) for event, _ in slow.actions)
    assert slow.outcome(IDEAL).step_s == pytest.approx(operators, rel=0.01)
    assert own.outcome(IDEAL) == own.outcome()


def test_hosts_by_name_and_by_numbers():
    assert host.host(None, True, 2) == ARTICLE == host.host("article", True, 2)
    here = host.host(None, False, 6)
    assert (here.cores, here.fetch_ms, here.band) == (6, None, host.MEASURED_BAND)
    mine = host.host("cores=3,fetch_ms=2", False, 6)
    assert (mine.processors, mine.fetch_ms, mine.band) == (3, 2.0, 0.0)


@pytest.mark.parametrize("text", ["mine", "cores=0", "cores=8,fetch=1", "cores", "cores=nan", "article"])
def test_other_hosts_are_refused_with_what_is_allowed(text):
    words = "article, ideal, or numbers above 0 as cores=|only the cost of loading .*fetch_ms"
    with pytest.raises(InvalidValue, match=words):
        host.host(text, text != "article", 2)


def predicted(kernel_share, around=ARTICLE, launch_error=0.0, **switches):
    """A prediction with this share of kernels in a step."""
    about = {"gpu": GPUS["rtx3090"], "host": around, "recipe": Recipe().replace(**switches)}
    about |= {"kernel_share": kernel_share, "launch_error": launch_error}
    return SimpleNamespace(step=SimpleNamespace(compiled=False), **about)


def test_a_rates_band_mixes_kernels_and_host_by_their_shares():
    shares = (1.0,), (0.0,), (0.5,), (1.0, IDEAL)
    kernels, loader, both, ideal = (Prediction.band.fget(predicted(*each)) for each in shares)
    assert kernels == pytest.approx(GPUS["rtx3090"].band("rate"))
    assert loader == pytest.approx(ARTICLE.band)
    assert both < max(kernels, loader)
    assert ideal == kernels


def test_a_loop_that_waits_for_its_launches_is_no_better_known_than_they_are():
    """Whoever sets the numbers of a host says nothing of its operators."""
    mine = host.host("cores=8,fetch_ms=0.1", False, 2)
    launching = dataclasses.replace(plans.prediction(), host=mine)
    error = math.log1p(host.LAUNCHES_BAND)
    assert launching.launch_error == pytest.approx(error, rel=0.05)
    waiting = dataclasses.replace(plans.prediction(), host=mine, fetch_s=1.0)
    assert waiting.launch_error == pytest.approx(0.0, abs=0.01)
    known = predicted(0.2, mine, error), predicted(0.2, mine, error, workers=4)
    assert Prediction.band.fget(known[0]) >= host.LAUNCHES_BAND
    assert Prediction.band_of_gain(known[1], known[0]) == pytest.approx(host.LAUNCHES_BAND)


def test_what_both_sides_share_cancels_in_their_ratio():
    assert Prediction.band_of_gain(predicted(0.9, workers=4), predicted(0.9)) == 0.0
    layout = Prediction.band_of_gain(predicted(1.0, channels_last=True), predicted(1.0))
    assert layout == pytest.approx(GPUS["rtx3090"].band("channels_last"))
