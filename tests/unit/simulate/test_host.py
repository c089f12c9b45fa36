"""A virtual host, by hand: what waits for what, and that nothing is faster than each resource alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.simulate import host as hosts
from perfkit.simulate.host import ARTICLE, IDEAL, Host, Outcome, run
from perfkit.simulate.queue import Action, HostCosts, Launch, actions
from perfkit.simulate.step import Copy, Fetch, Kernel, Operator, Step, Tensor, Wait

MB = 10**6
HOST = Host(name="test", processors=8, cores=8, fetch_s=1e-3, pageable_gbs=2.0, link_gbs=10.0, copy_gbs=1e6)
"""A batch of 10: 10 ms to fetch; 20 MB: 10 ms from pageable, 2 ms from pinned memory."""


def step(kernels_s: list[float], copy: Copy | None = None, *waits: Wait) -> list[Action]:
    launches = [Launch(0.0, 0.0, [seconds]) for seconds in kernels_s]
    return [Fetch(), copy or Copy(20 * MB), *launches, *waits]


def pinned(stream: int = 0) -> Copy:
    return Copy(20 * MB, pinned=True, non_blocking=True, stream=stream)


def outcome(found: list[Action], host: Host = HOST, **switches: Any) -> Outcome:
    return run(found, Recipe(batch_size=10, **switches), host, gpu_link_gbs=10.0)


def ms(value: float) -> float:
    return 1e3 * value


def test_without_workers_fetching_and_copying_are_serial_and_kernels_overlap_with_the_next_fetch() -> None:
    """10 ms fetch, 10 ms pageable copy; 4 ms of kernels run while the next batch is fetched."""
    found = outcome(step([4e-3]))
    assert ms(found.step_s) == pytest.approx(20)
    assert ms(found.data_wait_s) == pytest.approx(10)
    assert (ms(found.kernel_s), ms(found.copy_s)) == pytest.approx((4, 10))
    assert found.utilization == pytest.approx(0.2)


def test_kernels_longer_than_the_fetch_hold_up_the_pageable_copy() -> None:
    """Kernels of 25 ms: the copy waits for the stream, so a step is kernels and copy."""
    assert ms(outcome(step([25e-3])).step_s) == pytest.approx(35)


def test_waiting_for_the_loss_makes_everything_serial() -> None:
    assert ms(outcome(step([4e-3], None, Wait("item"))).step_s) == pytest.approx(24)


def test_a_wait_in_every_fourth_step_costs_a_quarter() -> None:
    assert ms(outcome(step([4e-3], None, Wait("item", every=4))).step_s) == pytest.approx(21)


def test_workers_that_keep_up_leave_copy_and_kernels() -> None:
    """Two workers: 5 ms a batch; the pageable copy waits for the kernels and then takes 10 ms."""
    found = outcome(step([8e-3]), workers=2)
    assert ms(found.step_s) == pytest.approx(18)
    assert ms(found.data_wait_s) == pytest.approx(0, abs=1e-6)


def test_a_slow_loader_decides_the_pace() -> None:
    """Two workers deliver a batch every 5 ms; copy and kernels take 3."""
    found = outcome(step([1e-3], pinned()), workers=2)
    assert ms(found.step_s) == pytest.approx(5)
    assert ms(found.data_wait_s) == pytest.approx(5, abs=0.01)
    assert found.utilization == pytest.approx(0.2)


def test_pinned_copies_queue_behind_kernels_on_one_stream_and_overlap_on_two() -> None:
    assert ms(outcome(step([8e-3], pinned()), workers=4).step_s) == pytest.approx(10)
    prefetch: list[Action] = [Wait("stream", (0, 1)), Fetch(), pinned(1), Launch(0.0, 0.0, [8e-3])]
    assert ms(outcome(prefetch, workers=4).step_s) == pytest.approx(8)


def test_more_workers_than_cores_do_not_load_faster() -> None:
    small = msgspec.structs.replace(HOST, cores=2)
    times = [outcome(step([1e-4], pinned()), small, workers=workers).step_s for workers in (1, 2, 4, 8)]
    assert [ms(time) for time in times] == pytest.approx([10, 5, 5, 5])


def test_the_pin_thread_is_a_resource_too() -> None:
    """Copying 20 MB at 1 GB/s takes 20 ms: longer than anything else."""
    slow = msgspec.structs.replace(HOST, copy_gbs=1.0)
    found = outcome(step([1e-3], pinned()), slow, workers=8, pin_memory=True, non_blocking=True)
    assert ms(found.step_s) == pytest.approx(20)


def test_launches_decide_the_pace_of_small_kernels_and_a_graph_ends_that() -> None:
    launched: list[Action] = [Launch(15e-6, 5e-6, [2e-6]) for _ in range(100)]
    graph: list[Action] = [Launch(15e-6, 5e-6, [2e-6] * 100, is_graph=True)]
    assert 1e6 * outcome([Fetch(), *launched], IDEAL).step_s == pytest.approx(2000)
    assert 1e6 * outcome([Fetch(), *graph], IDEAL).step_s == pytest.approx(200)


def test_an_ideal_host_only_launches() -> None:
    found = outcome(step([8e-3]), IDEAL)
    assert ms(found.step_s) == pytest.approx(8)
    assert found.data_wait_s == 0
    assert found.utilization == pytest.approx(1)


@given(
    fetch_ms=st.floats(0.01, 5), kernels_ms=st.floats(0.1, 50), megabytes=st.integers(1, 200),
    workers=st.integers(0, 9), is_pinned=st.booleans(), cores=st.integers(1, 8),
)  # fmt: skip
def test_never_faster_than_each_resource_alone(
    fetch_ms: float, kernels_ms: float, megabytes: int, workers: int, is_pinned: bool, cores: int
) -> None:
    host = msgspec.structs.replace(HOST, fetch_s=fetch_ms * 1e-3, cores=cores)
    copy = Copy(megabytes * MB, pinned=is_pinned, non_blocking=is_pinned)
    found = outcome(step([kernels_ms * 1e-3], copy), host, workers=workers, pin_memory=is_pinned)
    link = megabytes * MB / (10e9 if is_pinned else 2e9)
    loading = 10 * fetch_ms * 1e-3 / max(1, min(workers, cores))
    least = max(kernels_ms * 1e-3 + link, loading)  # one stream: a copy and the kernels exclude each other
    serial = kernels_ms * 1e-3 + link + 10 * fetch_ms * 1e-3 * max(1, workers / cores)
    assert found.step_s >= least * (1 - 1e-6) or workers == 0
    assert found.step_s <= serial * (1 + 1e-6)
    assert (found.kernel_s, found.copy_s) == pytest.approx((kernels_ms * 1e-3, link))
    assert found.utilization <= 1 + 1e-9


# ---------------------------------------------------------------- from a plan


def test_actions_are_those_of_the_plan_in_its_order() -> None:
    tensor = Tensor((2,), "float32")
    events = [
        Fetch(), Copy(8), Operator("aten.mm", "forward", [tensor], [tensor]),
        Operator("fused", "backward", [tensor], [tensor]), Wait("item"),
    ]  # fmt: skip
    kernels = [Kernel("a", "gemm", 1e-3, 2), Kernel("b", "gemm", 2e-3, 2), Kernel("c", "fused", 3e-3, 3)]
    plan = Step(events=events, samples=2, torch="2.15")
    found = actions(plan, kernels, HostCosts(1e-5, 2e-6))
    assert found == [
        Fetch(), Copy(8), Launch(1e-5, 2e-6, [1e-3, 2e-3]), Launch(0.0, 2e-6, [3e-3]), Wait("item"),
    ]  # fmt: skip
    graph = actions(msgspec.structs.replace(plan, graph=True), kernels, HostCosts(1e-5, 2e-6))
    assert graph[2] == Launch(1e-5, 2e-6, [1e-3, 2e-3, 3e-3], is_graph=True)


# ---------------------------------------------------------------- hosts by name


def test_hosts_by_name_and_by_numbers() -> None:
    assert hosts.host(None) is hosts.host("mine") is None
    assert hosts.host("article") is ARTICLE
    assert hosts.host("ideal") is IDEAL
    own = hosts.host("cores=4,fetch_ms=2.5,link_gbs=25")
    assert own
    assert (own.cores, own.processors, own.fetch_s, own.link_gbs) == (4, 4, 2.5e-3, 25)
    assert own.pageable_gbs == ARTICLE.pageable_gbs


@pytest.mark.parametrize(
    "text", ["nobody", "cores=0", "cores=x", "cores=4,speed=2", "cores", "cores=1e999", "cores=nan"]
)
def test_other_hosts_are_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(InvalidValue, match="Allowed: mine, article, ideal, or numbers"):
        hosts.host(text)
