"""Studies in a cell, traces by name, facts and commands to copy."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue, WorkloadError
from perfkit.notebook import functions
from perfkit.studies import plan as plans
from perfkit.worker import reports

FOLDER = Path(__file__).parents[3] / "data" / "recordings" / "traces"


def test_a_study_has_a_line_of_progress(capsys: pytest.CaptureFixture[str]) -> None:
    def study(show: Any) -> str:
        show(plans.Progress("amp", "measuring", 0.5))
        return "found"

    assert functions.with_line(study) == "found"
    line = capsys.readouterr().err
    assert "amp: measuring" in line
    assert "done" in line


def test_a_study_that_fails_leaves_its_error_in_the_line(capsys: pytest.CaptureFixture[str]) -> None:
    def study(show: Any) -> str:
        raise WorkloadError("no such workload", "Choose another")

    with pytest.raises(WorkloadError):
        functions.with_line(study)
    assert "Choose another" in capsys.readouterr().err


def test_a_report_of_syncs_counts_them_per_step() -> None:
    place = reports.Place("item", "train.py:3", "wait", "keep it", count=8)
    report = pk.SyncReport(reports.SyncReport([place], 4, "cuda"))
    assert report.a_step == 2
    assert "train.py:3" in report.table().data
    assert "no copy and no wait" in pk.SyncReport(reports.SyncReport([], 4, "cuda")).table().data


def test_a_recorded_trace_by_name_and_against_another() -> None:
    before, after = (pk.TraceView(file) for file in sorted(FOLDER.glob("*.pt.trace.json.gz"))[:2])
    for title in ("Mean step", "Health", "Diagnosis", "Operators"):
        assert "<table" in before.table(title).data or "<p>" in before.table(title).data
    for name in ("breakdown", "timeline", "operators"):
        assert before.plot(name).data.startswith(b"\x89PNG")
    assert "<iframe" in before.timeline().data
    assert "Mean step" in before.compare(after).table().data
    assert before.found is before.analysis
    with pytest.raises(InvalidValue, match="Mean step"):
        before.table("no such table")


def test_a_recording_opens_with_tables_and_figures() -> None:
    recorded = pk.recording(FOLDER.parent / "cpu-quick.json")
    assert str(recorded.sections()[0]).startswith("Recorded 20")
    assert all(run.title in recorded.table("The ladder").data for run in recorded.found)
    assert recorded.plot("throughput").data.startswith(b"\x89PNG")
    with pytest.raises(InvalidValue, match="no recording 'none.json'. There are: cpu-quick"):
        pk.recording("none.json")


def test_this_machine_and_its_checks() -> None:
    assert "core" in pk.machine().data
    checks = pk.doctor()
    assert len(checks.found) >= 5
    for check in checks.found:
        assert check.name in checks.table().data


def test_the_source_of_a_workload_is_read_not_imported() -> None:
    text = pk.source("perfkit.workloads.bottlenecks:DataBound")
    assert text.startswith("class DataBound")
    with pytest.raises(InvalidValue, match="no class Nothing"):
        pk.source("perfkit.workloads.bottlenecks:Nothing")


def test_the_command_for_a_cluster() -> None:
    assert "--nnodes 2 --nproc-per-node 8" in pk.torchrun(16, nodes=2).data


@pytest.mark.parametrize(("path", "installed"), [("/usr/bin/nsys", True), (None, False)])
def test_the_command_of_nsight_systems(path: str, installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: path)
    monkeypatch.setattr("perfkit.studies.inspect.nsys", lambda *which, **how: ["nsys", "profile", "python"])
    text = pk.nsys().data
    assert "nsys profile python" in text
    assert ("not installed" in text) is not installed


def test_the_first_cell_loads_nothing_that_takes_long() -> None:
    code = (
        "import sys\nfrom perfkit import notebook\nprint({'torch', 'matplotlib', 'libcst'} & {*sys.modules})"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout == "set()\n"
