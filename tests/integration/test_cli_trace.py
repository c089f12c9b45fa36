"""`perfkit trace` and `perfkit profile` as a person uses them."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfkit import trace
from perfkit.studies import inspect
from tests.support.cli import perfkit

pytestmark = pytest.mark.usefixtures("no_orphans")

BEFORE = str(
    Path(__file__).parents[2] / "data" / "recordings" / "traces" / "photos-baseline.pt.trace.json.gz"
)
FIELDS = """
    schema files device health steps mean_step_us mean_us exposed_and_hidden_us gpu_utilization
    gpu_utilization_with_copies est_sm_efficiency est_achieved_occupancy tensor_core operators kernels transfers syncs idle communication
    diagnosis
""".split()


def test_a_trace_gives_tables_and_json():
    for title in ("Health of the trace", "Mean step", "Operators", "Diagnosis"):
        assert title in perfkit("trace", BEFORE).stdout
    document = json.loads(perfkit("trace", BEFORE, "--json", "-").stdout)
    assert list(document) == FIELDS
    for step in document["steps"]:
        parts = [value for value in step["breakdown_us"].values() if value is not None]
        assert sum(parts) == pytest.approx(step["duration_us"])


def test_files_are_written_even_where_nobody_reads_on(tmp_path):
    page, plain = tmp_path / "out.html", tmp_path / "out.json"
    files = ["--html", str(page), "--json", str(plain)]
    command = [sys.executable, "-m", "perfkit", "trace", BEFORE, *files]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()  # as `| head` does, at the earliest
        assert process.stderr.read() == b""
    assert "<canvas" in page.read_text()
    assert list(json.loads(plain.read_text())) == FIELDS


def test_a_read_is_stopped_by_ctrl_c_with_one_line(tmp_path):
    event = b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 1},'
    path = tmp_path / "large.json"
    path.write_bytes(b"[" + 1_000_000 * event + b"{}]")
    command = [sys.executable, "-m", "perfkit", "trace", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        opened = Path(f"/proc/{process.pid}/fd")
        while process.poll() is None and not any(link.resolve() == path for link in opened.iterdir()):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate()
    assert (process.returncode, output) == (130, "")
    assert re.fullmatch(r"stopped.*\n", errors)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8bbroken", b'{"a": 1}'])
def test_what_is_no_trace_gets_one_line(content, tmp_path):
    (tmp_path / "x.json").write_bytes(content)
    (_,) = perfkit("trace", str(tmp_path / "x.json"), code=1).stderr.strip().splitlines()


def test_a_live_profile_keeps_its_trace(tmp_path):
    out, record = tmp_path / "mine.pt.trace.json.gz", tmp_path / "p.json"
    training = ("--workload", "tests.support.toy:Chatty", "--set", "workers=1", "--device", "cpu")
    text = perfkit("profile", *training, "--steps", "2", "-o", str(out), "--json", str(record)).stdout
    assert "open it in https://ui.perfetto.dev" in text
    assert list(json.loads(record.read_text())) == FIELDS
    assert len(trace.analyse(out).steps) == 2


def test_a_look_inside_names_the_line_of_a_wait_and_the_roofs():
    training = {"workload": "tests.support.toy:Chatty", "preset": "smoke", "device": "cpu"}
    (place,) = inspect.syncs(**training).places
    assert (place.where.rpartition("/")[2].split(":")[0], place.call, place.kind) == (
        "toy.py",
        "item",
        "wait",
    )
    assert inspect.kernels(**training).peaks["float32"] > 1e8


def test_a_profile_of_what_cannot_be_is_refused(tmp_path):
    assert "does not apply here" in perfkit("profile", "--stage", "pinning", "--device", "cpu", code=2).stderr
    assert ".json" in perfkit("profile", "-o", str(tmp_path / "x.txt"), code=2).stderr
