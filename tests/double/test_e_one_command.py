"""`make gpu`: a part that fails or takes too long keeps none of the rest from running, and what is there is packed."""

import json
import sys
import zipfile

import pytest

from benchmarks import gpu
from perfkit.show import terminal
from tests.support import double

INTERRUPTED = """
import signal, sys, time
try:
    print("begun", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    open(sys.argv[1], "w").write("kept")
    print("kept", flush=True)
"""


def part(name, code, *words, limit_s=60.0):
    return gpu.Part(name, f"part {name}", [sys.executable, "-c", code, *words], limit_s)


def test_each_part_runs_whatever_the_others_do(tmp_path, no_orphans):
    kept = tmp_path / "kept.txt"
    every = [
        part("fails", "print('why'); raise SystemExit(3)"),
        part("late", INTERRUPTED, str(kept), limit_s=10.0),
        part("works", "print('fine')"),
    ]
    outcomes = list(gpu.run_all(every, tmp_path, minutes=1.6))
    assert outcomes[1].seconds < 30, "its share, which leaves the last one its own"
    assert [one.state for one in outcomes] == [gpu.FAILED, gpu.LATE, gpu.OK]
    assert outcomes[0].log == "why"
    assert [gpu.exit_code(some) for some in (outcomes, outcomes[1:], outcomes[2:])] == [1, 3, 0]
    assert kept.read_text() == "kept", "it was interrupted, not killed"
    told = terminal.text(gpu.report(outcomes, tmp_path), 150)
    assert "part fails: failed" in told and "why" in told
    assert "No ladder was measured." in told


def test_without_time_the_rest_is_left_out_and_said(tmp_path):
    outcome = gpu.run(part("never", "1 / 0"), tmp_path, limit_s=-1.0)
    assert (outcome.state, outcome.seconds) == (gpu.LEFT_OUT, 0.0)
    assert not (tmp_path / "never.log").exists()


def test_the_file_has_the_small_ones_and_names_what_did_not_fit(tmp_path):
    (tmp_path / "report.html").write_text("page")
    (tmp_path / "trace.json.gz").write_bytes(bytes(1000))
    with zipfile.ZipFile(gpu.pack(tmp_path, "t4", most=100)) as archive:
        assert archive.namelist() == ["report.html", "left_out.txt"]
        assert archive.read("left_out.txt") == b"trace.json.gz (1,000 bytes)"


@pytest.mark.parametrize(("gib", "pixels"), [(15, 96), (80, 224), (None, 64), (1, 32)])
def test_the_ladder_is_sized_to_the_card(gib, pixels):
    assert gpu.image_size(gib and gib << 30) == pixels


def test_a_run_against_the_double_writes_page_recording_and_file(tmp_path, monkeypatch, no_orphans):
    words = [
        "gpu",
        "--minutes",
        "60",
        "--preset",
        "smoke",
        "--only",
        "facts,export,bare",
        "--out",
        str(tmp_path),
    ]
    monkeypatch.setattr(sys, "argv", words)
    assert gpu.main() == 0
    (packed,) = tmp_path.glob("gpu-*.zip")
    assert packed.name == "gpu-double-of-cuda-no-gpu.zip"
    with zipfile.ZipFile(packed) as archive:
        assert {"report.html", "facts.json", "bare.py", "bare.log"} <= set(archive.namelist())
        assert json.loads(archive.read("facts.json"))["checks"]
        assert double.NAME in archive.read("report.html").decode()
