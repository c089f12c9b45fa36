"""Measuring processes: they start at once, share nothing, and end with all that they started."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from perfkit.errors import Cancelled, RunFailed
from perfkit.process import server
from perfkit.process.child import Child, call
from perfkit.recipe import Recipe
from perfkit.worker.messages import Block, Description, Peak, Trained

ROOT = Path(__file__).parents[2]
TOY: dict[str, Any] = {"workload": "tests.support.toy:Toy", "preset": "smoke", "options": {}, "device": "cpu"}

pytestmark = pytest.mark.usefixtures("no_orphans")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="a fork without exec is safe on Linux alone")


def described(child: Child, workload: str = "tests.support.toy:Toy") -> Description:
    return child.ask("describe", Description, **{**TOY, "workload": workload})


def server_of(child: Child) -> psutil.Process:
    parent = psutil.Process(child.pids[0]).parent()
    assert parent
    return parent


@on_linux
def test_children_share_a_server_and_nothing_else() -> None:
    with Child() as first, Child() as second:
        assert described(first) == described(second)
        assert server_of(first).pid == server_of(second).pid != os.getpid()
        for child in (first, second):
            (pid,) = child.pids
            assert os.getpgid(pid) == os.getsid(pid) == pid
            assert psutil.Process(pid).name() == "perfkit.worker"
        first.stop()
        assert not psutil.pid_exists(first.pids[0])
        assert described(second).reference


def test_a_second_child_starts_at_once() -> None:
    with Child() as first:
        described(first)
        start = time.monotonic()
        with Child() as second:
            described(second)
        assert time.monotonic() - start < 2, "it has not imported torch again"


@on_linux
def test_nothing_is_set_in_a_process_and_a_switch_is_set_before_torch_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    name = "perfkit.worker.checks:first_environment"
    names = ("OMP_", "MALLOC_", "GLIBC_", "KMP_")
    assert [key for key in call(name) if key.startswith(names)] == []
    with Child(environment={"OMP_NUM_THREADS": "1", "MALLOC_MMAP_MAX_": "0"}) as switched, Child() as plain:
        assert server_of(switched).pid != server_of(plain).pid
        assert described(switched).facts.threads == 1
        assert described(plain).facts.threads == (os.cpu_count() or 1)
    assert "MALLOC_MMAP_MAX_" not in os.environ


def test_a_child_has_this_process_s_folder_path_and_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(
        textwrap.dedent(
            """
            import os, pathlib, tempfile
            pathlib.Path("seen").write_text("|".join([os.environ["PERFKIT_SEEN"], os.getcwd(), tempfile.gettempdir()]))
            from tests.support.toy import Toy
            """
        )
    )
    with Child():
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PERFKIT_SEEN", "late")
        with Child() as second:
            described(second, "own:Toy")
            variable, folder, temporary = (tmp_path / "seen").read_text().split("|")
            assert (variable, folder) == ("late", str(tmp_path))
            assert Path(temporary).is_dir()
        assert not Path(temporary).exists()


def test_loader_workers_are_started_as_in_any_script() -> None:
    import multiprocessing

    assert call("multiprocessing:get_start_method") == multiprocessing.get_start_method()


def test_prints_go_to_the_log_and_not_into_messages() -> None:
    with Child() as child:
        described(child, "tests.support.toy:Unhurried")
        child.ask("train", Trained, recipe=Recipe(batch_size=8).to_dict(), seed=0, loss_steps=2, warmup_s=0.0)
        assert child.ask("block", Block, samples=16).samples >= 16
        assert child.log()[0].endswith('"a print of the workload"}')


def test_ranks_are_asked_as_one_and_the_first_answers() -> None:
    with Child(ranks=2) as child:
        described(child)
        recipe = Recipe(batch_size=8, ranks=2, cpu_threads=1).to_dict()
        trained = child.ask("train", Trained, recipe=recipe, seed=0, loss_steps=2, warmup_s=0.0)
        assert trained.samples_per_step == 16
        assert [proof.ok for proof in trained.mechanisms if proof.switch == "ranks"] == [True]


def test_of_ranks_that_fail_the_cause_is_told_not_that_the_others_lost_it() -> None:
    with Child(ranks=2) as child, pytest.raises(RunFailed, match=r"^rank 1 of 2: .*\(toy.py:\d+\)"):
        described(child, "tests.support.toy:FailingRank")
        recipe = Recipe(batch_size=8, ranks=2, cpu_threads=1).to_dict()
        child.ask("train", Trained, recipe=recipe, seed=0, loss_steps=20, warmup_s=0.0)


# ---------------------------------------------------------------- one function


def test_a_call_gives_the_result_of_a_function_of_a_fresh_process() -> None:
    assert call("os:getpid") != os.getpid()
    assert call(divmod, 7, 2) == (3, 1)


def test_a_call_that_raises_dies_or_does_not_end_says_so() -> None:
    with pytest.raises(RunFailed, match="ZeroDivisionError"):
        call(divmod, 7, 0)
    with pytest.raises(RunFailed, match="exit status 3"):
        call("os:_exit", 3)
    with pytest.raises(RunFailed, match="time limit"):
        call(time.sleep, 60, timeout_s=1)


# ---------------------------------------------------------------- the end


def test_cancelled_while_it_starts_it_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_orphans: Callable[..., None]
) -> None:
    server.restart()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        Child(cancelled=stop)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("perfkit-")]
    no_orphans()


@on_linux
def test_when_the_server_dies_its_children_do_and_the_next_one_starts() -> None:
    child = Child()
    (pid,) = child.pids
    server_of(child).kill()
    with pytest.raises(RunFailed):
        child.ask("peak", Peak)
    child.stop()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    with Child() as another:
        assert described(another).reference


def script(code: str, folder: Path) -> Iterator[str]:
    """Runs a script without `if __name__ == "__main__"`; gives what it prints, line by line."""
    file = folder / "script.py"
    file.write_text(textwrap.dedent(code))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(folder)])}
    process = subprocess.Popen(
        [sys.executable, str(file)], stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
    )
    assert process.stdout
    yield from process.stdout
    process.wait()


def test_a_script_is_not_run_again_in_its_children(tmp_path: Path) -> None:
    lines = script("from perfkit.process.child import call\nprint('run', call(abs, -1))", tmp_path)
    assert list(lines) == ["run 1\n"]


KILLED = """
    import json, os, pathlib, psutil, signal, time
    from perfkit.process.child import Child
    from perfkit.process.conversation import Question
    from perfkit.recipe import Recipe
    child = Child()
    toy = dict(preset="smoke", options={}, device="cpu")
    child.ask("describe", object, workload="WORKLOAD", **toy) if "WORKLOAD" != "stuck:Stuck" else child.send(
        Question("describe", dict(workload="WORKLOAD", **toy)))
    if "WORKLOAD" != "stuck:Stuck":
        recipe = Recipe(batch_size=8, workers=2).to_dict()
        child.ask("train", object, recipe=recipe, seed=0, loss_steps=2, warmup_s=0.0)
    else:
        while not pathlib.Path("held").exists():
            time.sleep(0.05)
    worker = psutil.Process(child.pids[0])
    print(json.dumps([p.pid for p in (worker, worker.parent(), *worker.children(recursive=True))]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@on_linux
@pytest.mark.parametrize("workload", ["tests.support.toy:Toy", "stuck:Stuck"])
def test_nothing_survives_a_parent_that_is_killed(workload: str, tmp_path: Path) -> None:
    """Loader workers neither, nor one in a call that holds the interpreter's lock, so that no thread runs."""
    code = "import ctypes, pathlib; pathlib.Path('held').touch(); ctypes.PyDLL(None).sleep(120)"
    (tmp_path / "stuck.py").write_text(code)
    (line,) = script(KILLED.replace("WORKLOAD", workload), tmp_path)
    pids = json.loads(line)
    assert len(pids) >= (4 if "Toy" in workload else 2), "a process, its server and its loader workers"
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(left, timeout=20)[1]


def test_what_a_child_started_ends_when_the_child_is_killed() -> None:
    with Child() as child:
        described(child)
        recipe = Recipe(batch_size=8, workers=2).to_dict()
        child.ask("train", Trained, recipe=recipe, seed=0, loss_steps=2, warmup_s=0.0)
        worker = psutil.Process(child.pids[0])
        loaders = worker.children(recursive=True)
        assert loaders
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(RunFailed, match="killed") as failure:
            child.ask("block", Block, samples=8)
        assert failure.value.kind == "out of memory"
    assert not psutil.wait_procs(loaders, timeout=10)[1]
