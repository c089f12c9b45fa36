"""The forms a trace comes in, and events with odd values."""

import gzip
import json

from perfkit.trace import analyse, load
from tests.unit.trace.recording import sample, written


def test_object_list_and_gzip_give_the_same(tmp_path):
    made = sample()
    plain = analyse(made.save(tmp_path))
    packed = analyse(made.save(tmp_path, "b.json.gz"))
    listed = analyse(written(tmp_path, json.dumps(made.events).encode()))
    misnamed = analyse(written(tmp_path, gzip.compress(made.text()), "c.json"))
    for other in (packed, listed, misnamed):
        assert (other.mean_us, other.kernels, other.operators) == (
            plain.mean_us,
            plain.kernels,
            plain.operators,
        )
    document = json.loads(plain.to_json())
    assert list(document) == [
        "schema", "files", "device", "health", "steps", "mean_step_us", "mean_us", "exposed_and_hidden_us",
        "gpu_utilization", "est_sm_efficiency", "est_achieved_occupancy", "tensor_core", "operators", "kernels",  # noqa: E501
        "transfers", "syncs", "idle", "communication", "memory", "diagnosis",
    ]  # fmt: skip


def test_nanoseconds_survive_where_a_float_would_lose_them(tmp_path):
    text = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 1712195495520824.518, "dur": 0.432}]}'  # noqa: E501
    columns = load(written(tmp_path, text)).ranks[0].columns
    assert (int(columns.start[0]), int(columns.end[0])) == (1712195495520824518, 1712195495520824950)


def test_events_with_impossible_values_are_dropped_and_counted(tmp_path):
    made = sample()
    for bad in (
        {"dur": -5},
        {"ts": "x"},
        {"dur": None},
        {"ts": 1e300},
        {"dur": 1e40},
        {"name": 3},
        {"dur": float("nan")},
    ):
        made.events.append(
            {"ph": "X", "cat": "kernel", "name": "bad", "pid": 1, "tid": 1, "ts": 1, "dur": 1, **bad}
        )
    made.events += [
        5,
        None,
        "x",
        [],
        {"ph": "X", "cat": "cpu_op", "name": "fine", "pid": "7", "tid": "x", "ts": "1010", "dur": "2"},
    ]
    found = analyse(made.load(tmp_path))
    assert "bad" not in [row.name for row in found.kernels]
    assert "fine" in [row.name for row in found.operators]
    assert any(b.code == "bad_events" and b.message.startswith("left out 11 ") for b in found.health)
