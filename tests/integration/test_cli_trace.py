"""`perfkit trace` and `perfkit profile` as a person uses them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfkit import trace
from tests.support.cli import perfkit

pytestmark = pytest.mark.usefixtures("no_orphans")

FOLDER = Path(__file__).parents[2] / "data" / "recordings" / "traces"
BEFORE = str(FOLDER / "photos-baseline.pt.trace.json.gz")
FIELDS = """
    schema files device health steps mean_step_us mean_us exposed_and_hidden_us gpu_utilization
    est_sm_efficiency est_achieved_occupancy tensor_core operators kernels transfers syncs idle communication
    memory diagnosis
""".split()


def test_a_trace_gives_tables_json_and_a_page(tmp_path: Path) -> None:
    outputs = ("--json", str(tmp_path / "out.json"), "--html", str(tmp_path / "out.html"))
    done = perfkit("trace", BEFORE, *outputs)
    for title in ("Health of the trace", "Mean step", "Operators", "Diagnosis"):
        assert title in done.stdout
    document = json.loads((tmp_path / "out.json").read_text())
    assert set(FIELDS) <= set(document)
    for step in document["steps"]:
        parts = [value for value in step["breakdown_us"].values() if value is not None]
        assert sum(parts) == pytest.approx(step["duration_us"])
    assert "<canvas" in (tmp_path / "out.html").read_text()


def test_a_page_is_written_even_where_nobody_reads_on(tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    command = [sys.executable, "-m", "perfkit", "trace", BEFORE, "--html", str(page)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.close()  # as `| head` does, at the earliest
        assert process.stderr
        assert process.stderr.read() == b""
    assert "<canvas" in page.read_text()


def test_json_alone_on_stdout() -> None:
    assert json.loads(perfkit("trace", BEFORE, "--json", "-").stdout)["steps"]


@pytest.mark.parametrize("content", [b"", b"no trace", b"\x1f\x8bbroken", b'{"a": 1}'])
def test_what_is_no_trace_gets_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(content)
    done = perfkit("trace", str(tmp_path / "x.json"), code=1)
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_live_profile_keeps_its_trace_and_says_what_it_cost(tmp_path: Path) -> None:
    out = tmp_path / "mine.pt.trace.json.gz"
    named = ("--workload", "cifar_resnet18", "--stage", "data_loading", "--steps", "2", "--device", "cpu")
    done = perfkit("profile", *named, "-o", str(out), "--json", str(tmp_path / "p.json"))
    assert "slow-down" in done.stdout or "the profiler a step takes about" in done.stdout
    analysis = trace.analyse(trace.load(out))
    assert len(analysis.steps) == 2
    document = json.loads((tmp_path / "p.json").read_text())
    assert document["loading"]["workers"] >= 1
    assert document["loading"]["supply_samples_per_s"] > 0


def test_a_profile_of_what_cannot_be_is_refused(tmp_path: Path) -> None:
    assert "thing to record" in perfkit("profile", "--record", "tea", code=2).stderr
    assert "does not apply here" in perfkit("profile", "--stage", "pinning", "--device", "cpu", code=2).stderr
    wrong = ("profile", "-o", str(tmp_path / "x.txt"))
    assert ".json" in perfkit(*wrong, code=2).stderr


def test_a_profile_names_the_line_of_a_wait_and_the_roofs(tmp_path: Path) -> None:
    named = ("--device", "cpu", "--steps", "1", "--workload", "tests.support.toy:Chatty")
    done = perfkit("profile", *named, "--syncs", "--kernels")
    assert re.search(r"toy\.py:\d+ .* item +wait +1 ", done.stdout)
    assert "Roofs, measured" in done.stdout
