"""`make gpu`: a part that fails or takes too long keeps none of the rest from running, and what is there is packed."""

import json
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks import gpu
from perfkit.ladder.catalogue import LADDER
from perfkit.results import recordings
from perfkit.show import terminal
from tests.support import cuda_lines, double
from tests.support.cli import perfkit
from tests.unit.results.test_run import run

TOY = "tests.support.toy:Toy"
INTERRUPTED = """
import signal, sys, time
try:
    print("begun", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    open(sys.argv[1], "w").write("kept")
    print("kept", flush=True)
"""


@pytest.fixture(autouse=True)
def untraced(monkeypatch):
    """Which lines are run is noted of the other tests alone: it takes time."""
    monkeypatch.delenv(cuda_lines.VARIABLE)


def part(name, code, *words, limit_s=60.0, **more):
    return gpu.Part(name, f"part {name}", [sys.executable, "-c", code, *words], limit_s, **more)


def outcome(state, name="one", log=""):
    return gpu.Outcome(part(name, ""), state, 1.0, log)


def test_each_part_runs_whatever_the_others_do(tmp_path, no_orphans):
    kept = tmp_path / "kept.txt"
    every = [
        part("fails", "print('why'); raise SystemExit(3)"),
        part("late", INTERRUPTED, str(kept), limit_s=10.0),
        part("works", "print('fine')"),
    ]
    outcomes = list(gpu.run_all(every, tmp_path, minutes=0.9))
    assert [one.state for one in outcomes] == [gpu.FAILED, gpu.LATE, gpu.OK]
    assert outcomes[0].log == "why"
    assert kept.read_text() == "kept", "it was interrupted, not killed"
    told = terminal.text(gpu.report(outcomes, tmp_path), 150)
    assert "part fails: failed" in told and "why" in told
    assert "No ladder was measured." in told


def test_each_part_has_its_share_of_the_time_that_is_left(tmp_path, monkeypatch):
    now, limits = [0.0], []

    def run(part, folder, limit_s):
        limits.append(limit_s)
        now[0] += 10.0
        return outcome(gpu.OK)

    monkeypatch.setattr(gpu, "run", run)
    monkeypatch.setattr(gpu.time, "monotonic", lambda: now[0])
    every = [part("a", "", limit_s=60.0), part("b", "", limit_s=30.0), part("c", "", limit_s=30.0)]
    list(gpu.run_all(every, tmp_path, minutes=(gpu.GRACE_S + 120) / 60))
    assert limits == [60.0, 55.0, 100.0]


def test_a_ladder_gets_a_budget_within_its_limit(tmp_path):
    done = gpu.run(part("ladder", "import sys; print(*sys.argv[1:])", has_budget=True), tmp_path, 60.0)
    assert done.log == "--budget 45"
    assert "--budget 45" in terminal.text(gpu.report([done], tmp_path), 150), "the command as it was run"


def test_without_time_the_rest_is_left_out_and_said(tmp_path):
    left = gpu.run(part("never", "1 / 0"), tmp_path, limit_s=-1.0)
    assert (left.state, left.seconds) == (gpu.LEFT_OUT, 0.0)
    assert not (tmp_path / "never.log").exists()


def test_the_page_begins_with_what_passed_and_what_to_do():
    late, failed = outcome(gpu.LATE, "slow"), outcome(gpu.FAILED, "bad")
    said = gpu.verdict([outcome(gpu.OK), late, failed])
    assert said.startswith("1 of 3 parts passed. Failed: part bad. ")
    assert "Out of time: part slow." in said and "--minutes 25" in said
    every = [outcome(gpu.OK), outcome(gpu.OK)]
    assert gpu.verdict(every) == "2 of 2 parts passed."
    codes = [gpu.exit_code(some) for some in (every, [late, failed], [late], [outcome(gpu.LEFT_OUT)])]
    assert codes == [0, 1, 3, 3]


def test_a_ladder_that_was_cut_is_shown_with_what_is_missing(tmp_path):
    (tmp_path / "smoke.json").write_bytes(recordings.content([run("r0", stage=name) for name in LADDER]))
    assert "The time was over" not in terminal.text(gpu.report([], tmp_path), 150)
    (tmp_path / "ladder.json").write_bytes(recordings.content([run("r1", stage="baseline")]))
    told = " ".join(terminal.text(gpu.report([], tmp_path), 150).split())
    assert f"before these stages were measured: {', '.join(LADDER[1:])}" in told


def test_the_file_has_the_small_ones_and_names_what_did_not_fit(tmp_path):
    (tmp_path / "report.html").write_text(f"page of {gpu.ROOT}/perfkit and {Path.home()}/.cache")
    (tmp_path / "trace.json.gz").write_bytes(bytes(1000))
    (tmp_path / "part-trace.json.gz").write_text("half of a trace")
    with zipfile.ZipFile(gpu.pack(tmp_path, "gpu-t4.zip", most=100)) as archive:
        assert archive.namelist() == ["report.html", "left_out.txt"]
        assert archive.read("left_out.txt") == b"trace.json.gz (1,000 bytes)"
        assert archive.read("report.html") == b"page of ./perfkit and ~/.cache", (
            "folders are nobody's business"
        )


@pytest.mark.parametrize(("gib", "pixels"), [(15, 96), (80, 224), (None, 64), (1, 32)])
def test_the_ladder_is_sized_to_the_card(gib, pixels):
    assert gpu.image_size(gib and gib << 30) == pixels


def test_its_own_looks_run(tmp_path, monkeypatch, no_orphans):
    monkeypatch.setattr(gpu, "WORKLOAD", TOY)
    monkeypatch.setattr(gpu, "BARE", (gpu.HALF,))
    monkeypatch.setattr(gpu, "PROFILED", ("channels_last", "pinning"))
    for look in ("parity", "syncs", "bare"):
        assert gpu.OWN[look](tmp_path, "smoke") == 0
    places = json.loads((tmp_path / "syncs.json").read_text())
    assert {place["kind"] for place in places} == {"host to device"}
    assert gpu.traces(tmp_path, "smoke") == 1, "a model without convolutions has no channels_last"
    traces = {file.name.partition(".")[0] for file in tmp_path.glob("trace-*")}
    assert traces == {"trace-pinning"}, "one that fails keeps no other from it"


def test_what_an_earlier_run_has_left_is_not_taken_for_this_one(tmp_path, monkeypatch, capsys):
    (tmp_path / "ladder.json").write_text("of another day")
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path)])
    assert gpu.main() == 2
    assert "is not empty" in capsys.readouterr().err


def test_a_run_against_the_double_writes_page_recording_and_file(tmp_path, monkeypatch, no_orphans):
    facts, *_ = gpu.parts(tmp_path, "smoke")
    command = ["run", "--workload", TOY, "--device", "cuda", "--preset", "smoke", "--stages", "pinning"]
    words = [sys.executable, "-m", "perfkit", *command, "-o", str(tmp_path / "ladder.json")]
    ladder = gpu.Part("ladder", "a ladder", words, 60.0)
    assert gpu.measure([facts, ladder], tmp_path, 60.0) == 0
    (packed,) = tmp_path.glob("gpu-*.zip")
    assert packed.name == "gpu-double-of-cuda-no-gpu.zip"
    with zipfile.ZipFile(packed) as archive:
        assert {"report.html", "facts.json", "ladder.json", "ladder.log"} <= set(archive.namelist())
        assert json.loads(archive.read("facts.json"))["checks"]
        assert double.NAME in archive.read("report.html").decode()
    assert [found.stage for found in recordings.find(str(packed))][:2] == ["baseline", "pinning"]
    assert double.NAME in perfkit("show", str(packed)).output
