"""Several ranks."""

from perfkit.trace import analyse
from tests.unit.trace.recording import Recording


def test_two_ranks_are_added_up_and_waiting_is_what_the_faster_one_loses(tmp_path):
    files = []
    for rank, start in enumerate((10, 40)):
        made = (
            Recording()
            .step(1, 0, 100)
            .launch("gemm", 0, (0, 20))
            .launch("ncclDevKernel_AllReduce", 5, (start, 60 - start), stream=20)
        )
        made.head["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": 2}
        files.append(made.save(tmp_path, f"rank{rank}.json.gz"))
    found = analyse(files)
    assert [step.rank for step in found.steps] == [0, 1]
    assert found.mean_us["kernel"] == 20
    assert found.communication["exposed_us_per_step"] == (40 + 20) / 2
    assert found.communication["overlapped_us_per_step"] == 10 / 2
    assert found.communication["waiting_us_per_step"] == 30 / 2
