"""Measuring processes: they start at once, share nothing, and end with all that they started."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from perfkit.errors import Cancelled, RunFailed
from perfkit.process import server
from perfkit.process.child import Child, call, end_tree
from perfkit.recipe import Recipe

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("no_orphans")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="a fork without exec is safe on Linux alone")


def described(child, workload="tests.support.toy:Toy"):
    return child.ask("describe", workload=workload, preset="smoke", options={}, device="cpu")


def trained(child, workload="tests.support.toy:Toy", **switches):
    described(child, workload)
    recipe = Recipe(**{"batch_size": 8, "cpu_threads": 1, **switches})
    return child.ask("train", recipe=recipe, seed=0, loss_steps=2, warmup_s=0.0)


def server_of(child):
    return psutil.Process(child.pids[0]).parent()


@on_linux
def test_children_share_a_server_that_has_imported_torch_and_nothing_else():
    with Child() as first:
        described(first)
        with Child() as second:
            assert described(first) == described(second)
            assert server_of(first).pid == server_of(second).pid != os.getpid()
            for child in (first, second):
                (pid,) = child.pids
                assert os.getpgid(pid) == os.getsid(pid) == pid
                assert psutil.Process(pid).name() == "perfkit.worker"
            first.stop()
            assert not psutil.pid_exists(first.pids[0])
            assert described(second)


@on_linux
def test_nothing_is_set_in_a_process_and_a_switch_is_set_before_torch_is_imported(monkeypatch):
    names = ("OMP_", "MALLOC_", "GLIBC_", "KMP_")
    environment = call("perfkit.worker.checks:first_environment")
    assert not any(name not in os.environ for name in environment if name.startswith(names))
    monkeypatch.setenv("PERFKIT_SEEN", "late")
    assert "PERFKIT_SEEN" not in call("perfkit.worker.checks:first_environment"), "set afterwards"
    with Child(environment={"OMP_NUM_THREADS": "2", "MALLOC_MMAP_MAX_": "0"}) as switched, Child() as plain:
        assert server_of(switched).pid != server_of(plain).pid
        asked = {"place": "torch:get_num_threads", "arguments": ()}
        assert switched.ask("call", **asked) == 2
        assert plain.ask("call", **asked) == int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    assert "MALLOC_MMAP_MAX_" not in os.environ


def test_a_child_has_this_process_s_folder_path_and_variables(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text("import os; variables = os.environ.copy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFKIT_SEEN", "late")
    with Child() as child:
        assert child.ask("call", place="own:variables", arguments=())["PERFKIT_SEEN"] == "late"
        places = "os:getcwd", "tempfile:gettempdir"
        folders = [child.ask("call", place=place, arguments=()) for place in places]
        assert folders == [str(tmp_path), str(child.folder)]
        assert child.folder.is_dir()
    assert not child.folder.exists()


def test_prints_go_to_the_log_and_not_into_messages():
    with Child() as child:
        trained(child, "tests.support.toy:Unhurried")
        assert child.ask("block", samples=16).samples >= 16
        assert child.log().splitlines()[0].endswith('"a print of the workload"}')


def test_ranks_are_asked_as_one_and_end_together():
    stop = threading.Event()

    def on_progress(phase):
        if phase == "measuring":
            stop.set()

    with Child(on_progress, stop, ranks=2) as child:
        trained(child, ranks=2)
        with pytest.raises(Cancelled):
            child.ask("block", samples=10**9)


def test_of_ranks_that_fail_the_cause_is_told_not_that_the_others_lost_it():
    with Child(ranks=2) as child, pytest.raises(RunFailed, match=r"^rank 1 of 2: .*\(toy.py:\d+\)"):
        trained(child, "tests.support.toy:FailingRank", ranks=2)


def spawned(*arguments):
    """How a process begins where a fork without exec is not safe."""
    server.ON_LINUX = False
    server.run(*arguments)


def test_on_a_mac_ranks_are_spawned_and_talk_over_its_loopback(monkeypatch):
    monkeypatch.setattr(server, "ON_LINUX", False)
    monkeypatch.setattr(server, "_method", multiprocessing.get_context("spawn"))
    monkeypatch.setattr(server, "run", spawned)
    monkeypatch.setattr("perfkit.process.child.sys", SimpleNamespace(platform="darwin"))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    assert call("os:getenv", "GLOO_SOCKET_IFNAME") == "lo0"
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # this system's
    with Child(ranks=2) as child:
        assert trained(child, ranks=2).samples_per_step == 16


def test_a_call_gives_the_result_of_a_fresh_process_or_says_how_it_ended():
    assert call("os:getpid") != os.getpid()
    assert call("builtins:divmod", 7, 2) == (3, 1)
    method = call("multiprocessing:get_start_method")
    assert method == multiprocessing.get_start_method(), "loader workers are started as in any script"
    with pytest.raises(RunFailed, match="ZeroDivisionError"):
        call("builtins:divmod", 7, 0)
    with pytest.raises(RunFailed, match="exit status 3"):
        call("os:_exit", 3)


@on_linux
def test_when_the_server_dies_its_children_do_and_another_starts(tmp_path, monkeypatch, no_orphans):
    child = Child()
    (pid,) = child.pids
    server_of(child).kill()
    with pytest.raises(RunFailed):
        child.ask("peak")
    child.stop()
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        Child(cancelled=stop)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("perfkit-")]
    no_orphans()
    with Child() as another:
        assert described(another)
        server_of(another).kill()
        assert call("builtins:divmod", 7, 2) == (3, 1), "also at once, before the death is noticed"


KILLED = """
    import json, os, pathlib, psutil, signal, time
    from perfkit.process.child import Child
    from perfkit.recipe import Recipe
    busy, stuck = Child(), Child()
    where = dict(preset="smoke", options={}, device="cpu")
    busy.ask("describe", workload="tests.support.toy:Toy", **where)
    busy.ask("train", recipe=Recipe(workers=2), seed=0, loss_steps=2, warmup_s=0.0)
    stuck.lines[0].send(("describe", dict(workload="stuck:Stuck", **where)))
    while not pathlib.Path("held").exists():
        time.sleep(0.05)
    started = psutil.Process().children(recursive=True)
    print(json.dumps([process.pid for process in started]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@on_linux
def test_nothing_survives_a_parent_that_is_killed(tmp_path):
    """Loader workers neither, nor one in a call that holds the interpreter's lock, so that no thread runs."""
    code = "import ctypes, pathlib; pathlib.Path('held').touch(); ctypes.PyDLL(None).sleep(120)"
    (tmp_path / "stuck.py").write_text(code)
    (tmp_path / "script.py").write_text(textwrap.dedent(KILLED))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = json.loads(done.stdout)
    assert len(pids) >= 5, "a server, two processes and two loader workers"
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(left, timeout=20)[1]


def test_what_a_child_started_ends_when_the_child_is_killed():
    with Child() as child:
        trained(child, workers=2)
        worker = psutil.Process(child.pids[0])
        loaders = worker.children(recursive=True)
        assert loaders
        worker.kill()
        with pytest.raises(RunFailed, match="killed") as failure:
            child.ask("block", samples=8)
        assert failure.value.kind == "out of memory"
    assert not psutil.wait_procs(loaders, timeout=10)[1]


@on_linux
def test_a_group_that_is_ended_leaves_no_semaphore():
    """They are removed by the resource tracker of `multiprocessing`, which must outlive what it serves."""
    code = (
        "import multiprocessing as mp, time; made = mp.get_context('spawn').Semaphore();"
        "print(made._semlock.name, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    shared = Path(f"/dev/shm/sem.{process.stdout.readline().strip('/').strip()}")
    assert shared.exists()
    end_tree(process.pid)
    process.communicate()
    assert not shared.exists()


@on_linux
def test_ctrl_c_does_not_reach_the_server_of_a_fresh_process():
    code = (
        "import psutil; from perfkit.process.child import Child\n"
        "with Child() as child: print(open(f'/proc/{psutil.Process(child.pids[0]).ppid()}/status').read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (blocked,) = (line.split()[1] for line in done.stdout.splitlines() if line.startswith("SigBlk"))
    assert int(blocked, 16) >> (signal.SIGINT - 1) & 1
