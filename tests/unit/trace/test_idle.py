"""Idle time by cause."""

from perfkit.trace import analyse
from tests.unit.trace.recording import Recording


def test_idle_time_is_classed_by_what_the_host_did(tmp_path):
    made = (
        Recording().step(1, 0, 100).op("enumerate(DataLoader)#_S.__next__", 0, 20).launch("a", 25, (30, 10))
    )
    made.launch("b", 31, (41, 9)).add("cuda_runtime", "cudaMalloc", 50, 10).launch("c", 64, (70, 10))
    found = {row.cause: row for row in analyse(made.load(tmp_path)).idle}
    expected = {"data": 20, "launch": 20, "queued": 1, "allocator": 10, "end_of_step": 20}
    assert {cause: row.total_us for cause, row in found.items()} == expected
    assert found["queued"].gaps == 1
