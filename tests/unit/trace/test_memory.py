"""Memory over time."""

from perfkit.trace import analyse
from tests.unit.trace.recording import Recording


def test_memory_has_a_curve_a_peak_and_owners(tmp_path):
    made = Recording().op("aten::empty", 0, 10).op("aten::relu", 20, 10)
    total = {"Total Reserved": 900}
    made.memory(1, 100, 1, **{"Total Allocated": 100}, **total).memory(
        21, 300, 2, **{"Total Allocated": 400}, **total
    )
    made.memory(40, -300, 2, **{"Total Allocated": 100}, **total)
    (found,) = analyse(made.load(tmp_path)).memory["devices"]
    assert (found["peak_allocated_bytes"], found["peak_reserved_bytes"], found["peak_at_us"]) == (
        400,
        900,
        21,
    )
    assert [(row["operator"], row["bytes"]) for row in found["owners_at_peak"]] == [
        ("aten::relu", 300),
        ("aten::empty", 100),
    ]
    old = Recording().op("a", 0, 1).memory(1, 50).memory(2, 20).memory(3, -70)
    (found,) = analyse(old.load(tmp_path)).memory["devices"]
    assert (found["relative"], found["peak_allocated_bytes"], found["peak_increase_bytes"]) == (
        True,
        None,
        70,
    )
