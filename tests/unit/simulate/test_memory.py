"""The caching allocator, by hand."""

from __future__ import annotations

from perfkit.simulate import memory
from perfkit.simulate.step import Allocate, Event, Step

MIB = 1 << 20


def step(*events: Event, resident: tuple[Allocate, ...] = ()) -> Step:
    return Step(events=[*events], resident=[*resident], samples=1, torch="2.15.0")


def take(block: int, nbytes: int) -> Allocate:
    return Allocate(nbytes, "activations", block)


def free(block: int, nbytes: int) -> Allocate:
    return Allocate(-nbytes, "activations", block)


def test_blocks_are_multiples_of_512_bytes() -> None:
    assert [memory.rounded(n) for n in (1, 512, 513, 1024)] == [512, 512, 1024, 1024]


def test_the_peak_names_its_kinds_and_its_event() -> None:
    weights = Allocate(1000, "parameters", 0)
    most = memory.peak(step(take(1, 600), take(2, 100), free(1, 600), free(2, 100), resident=(weights,)))
    assert (most.event, most.allocated) == (1, 1024 + 1024 + 512)
    assert most.by_kind == {"parameters": 1024, "activations": 1536}


def test_small_blocks_share_a_segment_of_2_mib() -> None:
    assert memory.reserved(step(take(1, 512), take(2, MIB), free(1, 512), free(2, MIB))) == 2 * MIB


def test_medium_blocks_share_a_segment_of_20_mib() -> None:
    assert (
        memory.reserved(step(take(1, 5 * MIB), take(2, 5 * MIB), free(1, 5 * MIB), free(2, 5 * MIB)))
        == 20 * MIB
    )


def test_large_blocks_have_segments_of_their_own_and_leave_them_to_others() -> None:
    events = (take(1, 30 * MIB), free(1, 30 * MIB), take(2, 29 * MIB), free(2, 29 * MIB))
    assert memory.reserved(step(*events)) == 30 * MIB


def test_free_neighbours_are_merged() -> None:
    events = (
        take(1, 40 * MIB), free(1, 40 * MIB), take(2, 20 * MIB), take(3, 20 * MIB), free(2, 20 * MIB),
        free(3, 20 * MIB), take(4, 40 * MIB), free(4, 40 * MIB),
    )  # fmt: skip
    assert memory.reserved(step(*events)) == 40 * MIB


def test_a_device_that_is_full_takes_back_free_segments_first() -> None:
    events = (take(1, 40 * MIB), free(1, 40 * MIB), take(2, 60 * MIB), free(2, 60 * MIB))
    assert memory.reserved(step(*events)) == 100 * MIB
    assert memory.reserved(step(*events), capacity=64 * MIB) == 60 * MIB


def test_what_does_not_fit_is_out_of_memory() -> None:
    events = (take(1, 40 * MIB), take(2, 40 * MIB), free(1, 40 * MIB), free(2, 40 * MIB))
    assert memory.reserved(step(*events), capacity=64 * MIB) is None
