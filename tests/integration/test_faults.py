"""What goes wrong on a real machine: one message with a remedy, the other stages go on, nothing is left."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfkit.errors import Cancelled, InvalidValue, PerfkitError, WorkloadError
from perfkit.process.child import Child
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.studies import sources
from perfkit.studies.progress import Progress, Update
from perfkit.studies.rungs import climb

pytestmark = pytest.mark.usefixtures("no_orphans")


def measured(workload: str, stages: tuple[str, ...], **more: Any) -> list[Run]:
    made = sources.plan(f"tests.support.toy:{workload}", "smoke", stages, device="cpu", **more)
    return climb(made, RunStore())


def statuses(runs: list[Run]) -> list[str]:
    return [run.status for run in runs]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"workload": "cifar"}, "unknown workload 'cifar'.*Did you mean.*cifar_resnet18"),
        ({"stages": ("pining",)}, "unknown stage 'pining'.*Did you mean 'pinning'"),
        ({"settings": {"worker": 1}}, "unknown switch 'worker'.*Did you mean 'workers'"),
        ({"settings": {"workers": -1}}, "'workers' was given '-1'.*0 to 256"),
        ({"settings": {"amp": "fp8"}}, "unknown value for 'amp' 'fp8'.*bf16"),
        ({"preset": "fast"}, "unknown preset 'fast'.*smoke, quick, paper"),
        ({"device": "gpu"}, "gpu"),
    ],
)
def test_unknown_names_are_refused_with_what_is_allowed(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValue, match=f"(?s){said}"):
        climb(sources.plan(**wrong))


@pytest.mark.parametrize(
    ("workload", "said"),
    [
        ("nowhere:thing", "cannot be imported: ModuleNotFoundError.*python -c"),
        ("tests.support.toy:nothing", "has no 'nothing'"),
        ("tests.support.toy:NoModel", "has no model, loss, optimizer"),
        ("tests.support.toy:BrokenConstructor", "cannot be built: RuntimeError: no data here"),
    ],
)
def test_a_workload_that_cannot_be_loaded_says_why(workload: str, said: str) -> None:
    with pytest.raises(PerfkitError, match=f"(?s){said}"):
        climb(sources.plan(workload, "smoke", device="cpu"))


def test_a_data_set_that_raises_in_a_worker_names_the_line_and_the_other_stages_go_on() -> None:
    runs = measured("RaisingData", ("baseline", "data_loading", "zero_grad"))
    assert statuses(runs) == ["failed"] * 2, "without a baseline there is nothing to climb from"
    assert "sample 7 is broken" in runs[0].reason
    assert "toy.py:" in runs[0].reason
    assert "loader worker" in runs[1].reason
    assert "sample 7 is broken" in runs[1].reason
    assert "toy.py:" in runs[1].reason


def test_a_killed_loader_worker_is_named_and_the_next_stage_stands_on_the_last_good_one() -> None:
    runs = measured("DyingWorker", ("data_loading", "zero_grad"))
    assert statuses(runs) == ["ok", "failed", "ok"]
    assert "a loader worker died" in runs[1].reason
    assert "lower workers" in runs[1].reason
    assert runs[2].recipe["workers"] == 0


@pytest.mark.parametrize("workload", ["HostMemory", "DeviceMemory", "Killed"])
def test_out_of_memory_is_named_and_the_next_stage_goes_on(workload: str) -> None:
    runs = measured(workload, ("batch_size", "zero_grad"))
    assert statuses(runs) == ["ok", "failed", "ok"]
    assert "memory" in runs[1].reason
    assert "batch_size" in runs[1].reason
    assert runs[2].recipe["batch_size"] == runs[0].recipe["batch_size"]
    assert [run.status for run in RunStore().runs(session=runs[0].session)] == ["ok", "failed", "ok"]


def test_a_loss_that_is_not_a_number_fails_the_stage() -> None:
    runs = measured("NaNLoss", ("baseline",))
    assert statuses(runs) == ["failed"]
    assert "loss became nan" in runs[0].reason
    assert "learning rate" in runs[0].reason


def test_a_run_that_takes_too_long_is_ended() -> None:
    with Child():  # the fork server has started: its imports do not count
        pass
    runs = measured("Slow", ("baseline",), timeout_s=6)
    assert statuses(runs) == ["failed"]
    assert "time limit" in runs[0].reason


def test_a_model_that_cannot_be_compiled_fails_its_stage_alone() -> None:
    runs = measured("Uncompilable", ("compile", "zero_grad"))
    assert statuses(runs) == ["ok", "failed", "ok"]
    assert "torch.compile failed" in runs[1].reason


def test_without_a_compiler_the_stage_does_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", "")
    runs = measured("Toy", ("compile",))
    assert statuses(runs) == ["ok", "not_applicable"]
    assert "compiler" in runs[1].reason


def test_prints_of_the_workload_do_not_disturb_the_channel() -> None:
    assert statuses(measured("Unhurried", ("zero_grad",))) == ["ok", "ok"]


def test_a_killed_child_is_one_message(tmp_path: Path) -> None:
    def kill(progress: Update) -> None:
        if progress.phase == "measuring":
            for child in psutil.Process().children(recursive=True):
                if child.name() == "perfkit.worker" or "perfkit.worker" in child.cmdline():
                    child.kill()

    made = sources.plan("tests.support.toy:Unhurried", "smoke", ("baseline",), device="cpu")
    runs = climb(made, RunStore(), Progress(kill))
    assert statuses(runs) == ["failed"]
    assert "was killed" in runs[0].reason


@pytest.mark.parametrize(
    "phase", ["importing torch", "building", "first steps", "warm-up", "measuring", "ceiling"]
)
def test_cancelling_in_any_phase_ends_at_once_and_keeps_what_was_finished(phase: str) -> None:
    cancelled = threading.Event()

    def cancel(progress: Update) -> None:
        if progress.phase == phase:
            cancelled.set()

    made = sources.plan("tests.support.toy:Unhurried", "smoke", ("zero_grad",), device="cpu")
    try:
        runs = climb(made, RunStore(), Progress(cancel, cancelled))
    except Cancelled:
        assert phase == "importing torch"
    else:
        # Both stages are warm before the first round, which never ended.
        assert statuses(runs) == ["cancelled"] * 2


PHASES = ["starting", "building", "warm-up", "measuring"]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", _CHATTY, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env=os.environ | {"PERFKIT_DATA": str(tmp_path)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


# The command line, with its progress as plain lines, so that a test can wait for a phase.
_CHATTY = """
import sys, perfkit.studies.progress as progress
phase = progress.Progress.phase
def chatty(self, name, fraction=0.0):
    print("PHASE", self.title, name, flush=True)
    phase(self, name, fraction)
progress.Progress.phase = chatty
from perfkit.cli import app
app(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("begins", "kept"),
    [
        (" importing torch", []),
        ("baseline first steps", ["cancelled", "cancelled"]),
        ("gradients zeroed importing torch", ["cancelled", "cancelled"]),
        ("gradients zeroed warm-up", ["cancelled", "cancelled"]),
        ("round 1 of gradients zeroed measuring", ["cancelled", "cancelled"]),
        ("round 3 of gradients zeroed measuring", ["ok", "ok"]),  # with two rounds
    ],
)
def test_ctrl_c_stops_cleanly_keeps_complete_rounds_and_exits_non_zero(
    shell: Callable[..., subprocess.Popen[str]], begins: str, kept: list[str], tmp_path: Path
) -> None:
    process = shell(
        "run",
        "--workload",
        "tests.support.toy:Unhurried",
        "--preset",
        "smoke",
        "--stages",
        "zero_grad",
        "--device",
        "cpu",
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(f"PHASE {begins}"):
            process.send_signal(signal.SIGINT)
            break
    rest = process.stdout.read()
    assert process.wait(20) == 130, rest
    assert "stopped" in rest
    assert "Traceback" not in rest
    runs = RunStore(tmp_path / "runs" / "runs.sqlite").runs() if kept else []
    assert [run.status for run in runs] == kept


def test_when_the_parent_is_killed_nothing_of_it_survives(
    shell: Callable[..., subprocess.Popen[str]], no_orphans: Callable[..., None]
) -> None:
    process = shell(
        "run",
        "--workload",
        "tests.support.toy:Unhurried",
        "--preset",
        "smoke",
        "--stages",
        "data_loading",
        "--device",
        "cpu",
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("PHASE data loading measuring"):
            process.kill()
            break
    process.wait()
    no_orphans()


def test_a_store_that_cannot_be_written_is_one_message(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("PERFKIT_DATA", str(blocked))
    with pytest.raises(PerfkitError):
        RunStore()


def test_an_output_that_cannot_be_written_is_refused_before_anything_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "perfkit", "run", "--json", "/no/such/folder/result.json"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "cannot write" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_while_storing_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, connect = RunStore(tmp_path / "runs.sqlite"), sqlite3.connect
    store.runs()  # makes the file

    def full(*given: Any, **named: Any) -> sqlite3.Connection:
        database = connect(*given, **named)
        database.execute("PRAGMA max_page_count = 1")  # as many pages as there are: SQLite finds no room
        return database

    monkeypatch.setattr(sqlite3, "connect", full)
    made = sources.plan("tests.support.toy:Toy", "smoke", ("baseline",), device="cpu")
    with pytest.raises(PerfkitError, match=r"(?s)full.*space"):
        climb(made, store)


def test_workload_errors_are_of_their_own_kind() -> None:
    from perfkit.workloads import load

    with pytest.raises(WorkloadError):
        load("tests.support.toy:NoModel")
