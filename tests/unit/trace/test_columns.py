"""Arguments that are missing or odd."""

from perfkit.trace import analyse
from tests.unit.trace.recording import Recording


def test_missing_or_odd_arguments_leave_figures_unknown_not_zero(tmp_path):
    made = Recording().step(1, 0, 100)
    for args in (
        None,
        5,
        [],
        {"correlation": "x", "blocks per SM": "many", "bytes": -3, "device": {}},
        {"correlation": 1e99},
    ):
        made.events.append(
            {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 5, "dur": 5, "args": args}
        )
    made.add("gpu_memcpy", "Memcpy HtoD", 20, 5, 7, 0)
    found = analyse(made.load(tmp_path))
    assert found.est_sm_efficiency is found.est_achieved_occupancy is None
    assert (found.kernels[0].blocks_per_sm, found.kernels[0].operator) == (None, None)
    assert (found.transfers[0].bytes, found.transfers[0].gb_per_s) == (None, None)


def test_huge_names_are_cut_and_html_stays_text(tmp_path):
    name = "<script>alert(1)</script>"
    found = analyse(Recording().op("x" * 5_000_000, 0, 9).op(name, 1, 2).load(tmp_path))
    assert {len(row.name) for row in found.operators} == {4097, len(name)}
    assert name in [row.name for row in found.operators]
