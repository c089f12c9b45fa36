"""The virtual machine: streams, the loader, links, and the error that comes with it."""

import pytest

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.simulate import bands, host
from perfkit.simulate.gpus import GPUS
from perfkit.simulate.host import ARTICLE, IDEAL, Host
from perfkit.simulate.queue import RUN_AHEAD, Queue
from perfkit.simulate.step import Copy, Fetch, Kernel, Operator, Wait

HOST = Host(name="test", processors=4, cores=4, fetch_s=1e-3, pageable_gbs=1.0, link_gbs=10.0)


def kernel(seconds, stream=0):
    operator = Operator("aten.mm", "forward", [], [], stream=stream)
    return operator, [Kernel("gemm", "gemm", seconds)]


def training(recipe):
    copy = Copy(10_000_000, pinned=recipe.pin_memory, non_blocking=recipe.non_blocking)
    return [(Fetch(), []), (copy, []), kernel(20e-3)]


def idle():
    return Queue(pinned=1e10, pageable=1e9)


def done(*actions):
    """A queue that has issued some events."""
    queue = idle()
    for action in actions:
        queue.issue(*action if isinstance(action, tuple) else (action,))
    return queue


ITEM, ORDER = Wait(".item()"), Wait("wait_stream", streams=(0, 1))
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
    queue = done(*10 * [kernel(1.0, stream=1), kernel(1.0)])
    assert queue.ends() == pytest.approx(20.0, rel=0.1), "as much work as on one stream"


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
    recipe = Recipe(batch_size=32).replace(**switches)
    outcome = host.run(training(recipe), recipe, HOST, idle(), 1e-3)
    assert outcome.step_s == pytest.approx(step_s, rel=0.05)
    assert outcome.data_wait_s == pytest.approx(wait_s, abs=1.5e-3)


def test_more_workers_than_cores_do_not_load_faster():
    loading = [(Fetch(), []), kernel(1e-6)]
    four, eight = (
        host.run(loading, Recipe(batch_size=32, workers=workers), HOST, idle(), 1e-3).step_s
        for workers in (4, 8)
    )
    assert four == pytest.approx(eight, rel=0.02)


def test_an_ideal_host_takes_the_kernels_time():
    assert host.run(training(Recipe()), Recipe(), IDEAL, idle(), 0.0).step_s == pytest.approx(20e-3)


def test_hosts_by_name_and_by_numbers():
    assert host.host(None, True, 2) == ARTICLE == host.host("article", True, 2)
    here = host.host(None, False, 6)
    assert (here.cores, here.fetch_s, here.band) == (6, None, host.MEASURED_BAND)
    mine = host.host("cores=3,fetch_ms=2", False, 6)
    assert (mine.processors, mine.fetch_s, mine.band) == (3, 2e-3, 0.0)


@pytest.mark.parametrize("text", ["mine", "cores=0", "cores=8,fetch=1", "cores", "cores=nan"])
def test_other_hosts_are_refused_with_what_is_allowed(text):
    with pytest.raises(InvalidValue, match="article, ideal, or numbers above 0 as cores="):
        host.host(text, True, 2)


def test_the_articles_host_is_refused_for_another_data_set():
    with pytest.raises(InvalidValue, match="no other data set.*fetch_ms"):
        host.host("article", False, 2)


def test_a_rates_band_mixes_kernels_and_host_by_their_shares():
    sheet = GPUS["v100"]
    kernels, loader = bands.of_rate(sheet, ARTICLE, 1.0), bands.of_rate(sheet, ARTICLE, 0.0)
    assert kernels == pytest.approx(bands.band(sheet, "rate"))
    assert loader == pytest.approx(ARTICLE.band)
    assert bands.of_rate(sheet, ARTICLE, 0.5) < max(kernels, loader)
    assert bands.of_rate(sheet, IDEAL, 1.0) == kernels


def test_what_both_sides_share_cancels_in_their_ratio():
    sheet, plain = GPUS["rtx3090"], Recipe()
    same = bands.of_ratio(sheet, ARTICLE, (plain, 0.9), (plain.replace(workers=4), 0.9))
    assert same == 0.0
    layout = bands.of_ratio(sheet, ARTICLE, (plain, 1.0), (plain.replace(channels_last=True), 1.0))
    assert layout == pytest.approx(bands.band(sheet, "channels_last"))
