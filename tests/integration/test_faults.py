"""What goes wrong on a real machine: one message with a remedy, the other stages go on, nothing is left."""

import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from perfkit.errors import Cancelled
from perfkit.process.child import Child
from perfkit.results.store import RunStore
from perfkit.studies import planning
from perfkit.studies.climb import climb
from perfkit.studies.sources import Progress

pytestmark = pytest.mark.usefixtures("no_orphans", "zygotes_stay")


def measured(workload, *stages, progress=None, timeout_s=None, **more):
    plan = planning.plan(f"tests.support.toy:{workload}", "smoke", stages, device="cpu", **more)
    return climb(replace(plan, timeout_s=timeout_s), RunStore(), progress)


def statuses(runs):
    return [run.status for run in runs]


def test_a_data_set_that_raises_names_the_line_and_without_a_baseline_there_is_nothing_to_climb_from():
    alone, in_a_worker = measured("RaisingData", "baseline", "data_loading", "zero_grad")
    for run in (alone, in_a_worker):
        assert (run.status, "sample 7 is broken (toy.py:" in run.reason) == ("failed", True)
    assert "loader worker" in in_a_worker.reason


def test_a_killed_loader_worker_is_named_and_the_next_stage_stands_on_the_last_good_one():
    runs = measured("DyingWorker", "data_loading", "zero_grad")
    assert statuses(runs) == ["ok", "failed", "ok"]
    assert "a loader worker died" in runs[1].reason
    assert runs[2].recipe["workers"] == 0


@pytest.mark.parametrize("workload", ["DeviceMemory", "Killed"])
def test_out_of_memory_is_named_and_the_next_stage_goes_on(workload):
    runs = measured(workload, "batch_size", "zero_grad")
    assert statuses(runs) == ["ok", "failed", "ok"]
    assert "memory" in runs[1].reason
    assert "batch_size" in runs[1].reason
    assert runs[2].recipe["batch_size"] == runs[0].recipe["batch_size"]
    assert statuses(RunStore().runs(session=runs[0].session)) == ["ok", "failed", "ok"]


def test_a_run_that_takes_too_long_is_ended():
    with Child():  # the fork server has started: its imports do not count
        pass
    (run,) = measured("Toy", "baseline", timeout_s=10, options={"delay_s": 3600})
    assert (run.status, "time limit" in run.reason) == ("failed", True)


def test_a_model_that_cannot_be_compiled_fails_its_stage_alone(monkeypatch):
    runs = measured("Uncompilable", "compile", "zero_grad")
    assert statuses(runs) == ["ok", "failed", "ok"]
    assert "torch.compile failed" in runs[1].reason
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", "")
    runs = measured("Toy", "compile")
    assert statuses(runs) == ["ok", "not_applicable"]
    assert "compiler" in runs[1].reason


@pytest.mark.parametrize("phase", ["importing torch", "building", "measuring", "cached batch"])
def test_cancelling_in_any_phase_ends_at_once_and_keeps_what_was_finished(phase):
    cancelled = threading.Event()

    def cancel(update):
        if update.phase == phase:
            cancelled.set()

    try:
        runs = measured("Unhurried", "zero_grad", progress=Progress(cancel, cancelled))
    except Cancelled:
        assert phase == "importing torch"
    else:
        # Both stages are warm before the first round, and the cached batch comes after the last one.
        assert statuses(runs) == ["ok" if phase == "cached batch" else "cancelled"] * 2


# The command line, with its progress as plain lines, so that a test can wait for a phase.
CHATTY = """
import sys, perfkit.studies.sources as progress
phase = progress.Progress.phase
def chatty(self, name):
    print("PHASE", self._title, name, flush=True)
    phase(self, name)
progress.Progress.phase = chatty
from perfkit.cli import app
app(sys.argv[1:])
"""
RUN = "run --workload tests.support.toy:Unhurried --preset smoke --stages zero_grad --device cpu"


@pytest.mark.parametrize(
    ("begins", "kept"),
    [
        (" importing torch", []),
        ("starting gradients zeroed warm-up", ["cancelled", "cancelled"]),
        ("round 3 of gradients zeroed measuring", ["ok", "ok"]),  # with two rounds
    ],
)
def test_ctrl_c_stops_cleanly_keeps_complete_rounds_and_exits_non_zero(begins, kept, tmp_path):
    command = [sys.executable, "-c", CHATTY, *RUN.split()]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    environment = os.environ | {"PERFKIT_DATA": str(tmp_path)}
    process = subprocess.Popen(command, **pipes, start_new_session=True, env=environment)
    with process:
        for line in process.stdout:
            if line.startswith(f"PHASE {begins}"):
                process.send_signal(signal.SIGINT)
                break
        rest = process.stdout.read()
    assert process.returncode == 130, rest
    assert "stopped" in rest
    assert "Traceback" not in rest
    runs = RunStore(tmp_path / "runs" / "runs.sqlite").runs() if kept else []
    assert statuses(runs) == kept
