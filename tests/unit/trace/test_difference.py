"""What changed between two traces."""

from perfkit.trace import analyse, compare
from tests.unit.trace.recording import Recording


def test_compare_says_what_appeared_vanished_grew_and_shrank(tmp_path):
    a = analyse(
        Recording()
        .step(1, 0, 100)
        .launch("x", 0, (5, 20))
        .launch("y", 1, (30, 10))
        .launch("w", 2, (50, 5))
        .load(tmp_path)
    )
    b = analyse(
        Recording()
        .step(1, 0, 100)
        .launch("x", 0, (5, 10))
        .launch("z", 1, (30, 10))
        .launch("w", 2, (50, 7))
        .load(tmp_path)
    )
    found = compare(a, b)
    assert {row.name: row.status for row in found.kernels} == {
        "x": "shrank",
        "y": "vanished",
        "z": "appeared",
        "w": "grew",
    }
    assert {row.status for row in compare(a, a).kernels} == {"same"}
    assert found.parts_us["kernel"] == (35, 27)
