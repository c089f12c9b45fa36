"""Measuring processes: they start at once, share nothing, and end with all that they started."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import psutil
import pytest

from perfkit.errors import Cancelled, OutOfMemory, RunFailed
from perfkit.process import zygote
from perfkit.process.child import Child, call, environment_of, last_lines
from perfkit.process.tree import Tree
from perfkit.recipe import Recipe

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.usefixtures("no_orphans")
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="a fork without exec is safe on Linux alone")


@pytest.fixture(autouse=True)
def _zygotes_import_torch_themselves(monkeypatch):
    monkeypatch.setattr(zygote, "subprocess", subprocess)


def described(child, workload="tests.support.toy:Toy"):
    return child.ask("describe", workload=workload, preset="smoke", options={}, device="cpu")


def trained(child, workload="tests.support.toy:Toy", **switches):
    described(child, workload)
    recipe = Recipe(**{"batch_size": 8, "cpu_threads": 1, **switches})
    return child.ask("train", recipe=recipe, seed=0, loss_steps=2, warmup_s=0.0)


def process_of(child):
    return child.tree.root


def zygote_of(child):
    return process_of(child).parent()


def has_ended(process):
    """Also as a zombie: it stays one until its parent, here a zygote, asks for its exit status."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@on_linux
def test_processes_that_have_ended_leave_no_open_files():
    call("os:getpid")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        call("os:getpid")
    assert len(os.listdir("/proc/self/fd")) <= before, "what earlier tests left may be closed meanwhile"


@on_linux
def test_children_share_a_zygote_that_has_imported_torch_and_nothing_else():
    with Child() as first:
        described(first)
        with Child() as second:
            assert described(first) == described(second)
            assert zygote_of(first).pid == zygote_of(second).pid != os.getpid()
            for child in (first, second):
                pid = process_of(child).pid
                assert os.getpgid(pid) == os.getsid(pid) == pid
                assert psutil.Process(pid).name() == "perfkit.worker"
            first.stop()
            assert has_ended(process_of(first))
            assert described(second)


@on_linux
def test_nothing_is_set_in_a_process_and_a_switch_is_set_before_torch_is_imported(monkeypatch):
    names = ("OMP_", "MALLOC_", "GLIBC_", "KMP_")
    environment = call("perfkit.worker.checks:first_environment")
    assert not any(name not in os.environ for name in environment if name.startswith(names))
    monkeypatch.setenv("PERFKIT_SEEN", "late")
    assert "PERFKIT_SEEN" not in call("perfkit.worker.checks:first_environment"), "set afterwards"
    with Child(environment={"OMP_NUM_THREADS": "2", "MALLOC_MMAP_MAX_": "0"}) as switched, Child() as plain:
        assert zygote_of(switched).pid != zygote_of(plain).pid
        asked = {"reference": "torch:get_num_threads", "arguments": ()}
        assert switched.ask("call", **asked) == 2
        assert plain.ask("call", **asked) == int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1))
    assert "MALLOC_MMAP_MAX_" not in os.environ


def test_a_child_has_this_process_s_folder_path_and_variables(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text("import os; variables = os.environ.copy")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFKIT_SEEN", "late")
    with Child() as child:
        assert child.ask("call", reference="own:variables", arguments=())["PERFKIT_SEEN"] == "late"
        places = "os:getcwd", "tempfile:gettempdir"
        folders = [child.ask("call", reference=place, arguments=()) for place in places]
        assert folders == [str(tmp_path), str(child.folder)]
        assert child.folder.is_dir()
    assert not child.folder.exists()


def test_headers_that_torch_compiles_are_kept_for_the_next_process(tmp_path, monkeypatch):
    """It takes a core 6 s, and torch looks for them in the folder of temporary files alone."""
    code = "import os; from torch._inductor import codecache\ndef place(): return os.path.realpath(codecache._HEADER_DIR)"
    (tmp_path / "own.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "new" / "cache"))
    assert call("own:place") == str(tmp_path.resolve() / "new" / "cache" / "precompiled_headers")


def test_prints_go_to_the_log_and_not_into_messages():
    with Child() as child:
        trained(child, "tests.support.toy:Unhurried")
        assert child.ask("slice", samples=16, seconds=0.0).samples >= 16
        assert last_lines(child.log).splitlines()[0].endswith('"a print of the workload"}')


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
def test_a_generation_has_its_own_zygote_which_ends_with_it_and_spares_the_others():
    generation = zygote.new_generation()
    with Child() as shared, Child(generation=generation) as own:
        assert zygote_of(own).pid != zygote_of(shared).pid
        theirs = zygote_of(own)
        zygote.end_generation(generation)
        zygote.end_generation(0)
        assert has_ended(theirs)
        assert described(shared)


@on_linux
def test_the_zygotes_of_all_sides_import_torch_at_the_same_time_and_are_the_ones_that_fork():
    generation = zygote.new_generation()
    passive = Recipe(wait_policy="passive").environment()
    try:
        for environment in ({}, passive, {}):
            zygote.prepare(environment_of(environment), generation)
        prepared = {key: each for key, each in zygote._zygotes.items() if key[0] == generation}
        assert len(prepared) == 2, "one for each environment"
        with Child(environment=passive, generation=generation) as child:
            assert described(child)
        assert {key: zygote._zygotes[key] for key in zygote._zygotes if key[0] == generation} == prepared
    finally:
        zygote.end_generation(generation)


@on_linux
def test_when_the_zygote_dies_its_children_do_and_another_starts(tmp_path, monkeypatch, no_orphans):
    child = Child()
    zygote_of(child).kill()
    with pytest.raises(RunFailed):
        child.ask("peak")
    child.stop()
    assert has_ended(process_of(child))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        Child(cancelled=stop)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("perfkit-")]
    no_orphans()
    with Child() as another:
        assert described(another)
        zygote_of(another).kill()
        assert call("builtins:divmod", 7, 2) == (3, 1), "also at once, before the death is noticed"


GIVES_UP = """
from perfkit.process import child, zygote
def interrupted(status, check):
    raise KeyboardInterrupt
zygote.ForkedChild = interrupted
try:
    child.Child()
except KeyboardInterrupt:
    pass
"""


@on_linux
def test_who_gives_up_while_torch_is_imported_sees_no_traceback_afterwards():
    """The request is still read, when its folder and its pipe have gone."""
    done = subprocess.run(
        [sys.executable, "-c", GIVES_UP], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stderr == ""


def states(child):
    return {process.status() for process in child.tree.processes()}


def test_a_suspended_side_does_nothing_with_all_that_it_started_and_goes_on_where_it_was():
    """Its loader workers and what it started in a session of its own are stopped, too."""
    with Child() as child:
        trained(child, "tests.support.toy:StartsOther", workers=2)
        assert len(child.pids()) >= 4, "it, two loader workers, another program"
        child.suspend()
        for _ in range(100):  # whoever runs on another core stops a moment later
            if states(child) == {psutil.STATUS_STOPPED}:
                break
            time.sleep(0.05)
        assert states(child) == {psutil.STATUS_STOPPED}
        before = child.tree.cpu_s()
        time.sleep(0.3)
        assert child.tree.cpu_s() == before
        assert child.ask("slice", samples=16, seconds=0.0).samples >= 16
        assert psutil.STATUS_STOPPED not in states(child)


def test_what_starts_while_a_tree_is_suspended_is_suspended_too():
    code = (
        "import subprocess, sys, time\n"
        "while True: subprocess.Popen(['sleep', '5'], start_new_session=True); time.sleep(0.001)"
    )
    process = subprocess.Popen([sys.executable, "-c", code])
    tree = Tree(process.pid)
    until = time.monotonic() + 60
    try:
        while len(tree.processes()) < 10:
            assert time.monotonic() < until
            time.sleep(0.01)
        tree.suspend()
        members = tree.processes()
        time.sleep(0.1)
        assert len(members) > 5 and tree.processes() == members, "nobody new appears"
        # Who started a process by vfork sleeps, as if for a disk, until that has run on: it is stopped.
        asleep = {psutil.STATUS_STOPPED, psutil.STATUS_DISK_SLEEP}
        assert {member.status() for member in members} <= asleep
    finally:
        tree.end()
        process.wait()
    assert all(has_ended(member) for member in members)


def test_a_side_is_ended_once_and_never_by_a_number_that_belongs_to_somebody_else(monkeypatch):
    """Its number may have been given to another process meanwhile: that one has begun at another time."""
    child = Child()
    trained(child)
    child.stop()
    stranger = subprocess.Popen(["sleep", "60"], start_new_session=True)
    tree = Tree(stranger.pid)
    monkeypatch.setattr(tree.root, "_create_time", tree.root.create_time() - 100)
    tree.root._ident = (stranger.pid, tree.root.create_time() - 100)
    child.tree = tree
    child.stop()
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_an_answer_that_was_given_up_is_not_taken_for_the_next_one():
    with Child(timeout_s=0.5) as child:
        with pytest.raises(RunFailed, match="time limit"):
            child.ask("call", reference="time:sleep", arguments=(1.0,))
        child.timeout_s = 60
        assert child.ask("call", reference="builtins:divmod", arguments=(7, 2)) == (3, 1)


def test_nothing_of_this_process_changes_while_another_one_starts():
    """A cell that runs meanwhile keeps its `__main__` and its variables."""
    main, seen, done = sys.modules["__main__"], set(), threading.Event()

    def watch():
        while not done.is_set():
            seen.add((sys.modules["__main__"] is main, os.environ.get("PYTHONPATH")))

    thread = threading.Thread(target=watch)
    thread.start()
    with Child(environment={"OMP_WAIT_POLICY": "PASSIVE"}):
        done.set()
    thread.join()
    assert seen == {(True, os.environ.get("PYTHONPATH"))}


KILLED = """
    import json, os, pathlib, psutil, signal, time
    from perfkit.process import Question
    from perfkit.process.child import Child
    from perfkit.recipe import Recipe
    busy, stuck = Child(), Child()
    where = dict(preset="smoke", options={}, device="cpu")
    busy.ask("describe", workload="tests.support.toy:Toy", **where)
    busy.ask("train", recipe=Recipe(workers=2), seed=0, loss_steps=2, warmup_s=0.0)
    suspended = Child()
    suspended.ask("describe", workload="tests.support.toy:Toy", **where)
    suspended.ask("train", recipe=Recipe(workers=2), seed=0, loss_steps=2, warmup_s=0.0)
    suspended.suspend()
    stuck.line.send(Question(1, "describe", dict(workload="stuck:Stuck", **where)))
    while not pathlib.Path("held").exists():
        time.sleep(0.05)
    started = psutil.Process().children(recursive=True)
    print(json.dumps([process.pid for process in started]), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@on_linux
def test_nothing_survives_a_parent_that_is_killed(tmp_path):
    """Loader workers neither, nor what is suspended, nor what is in a call that holds the interpreter's lock."""
    code = "import ctypes, pathlib; pathlib.Path('held').touch(); ctypes.PyDLL(None).sleep(120)"
    (tmp_path / "stuck.py").write_text(code)
    (tmp_path / "script.py").write_text(textwrap.dedent(KILLED))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path)])}
    command = [sys.executable, "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = json.loads(done.stdout)
    assert len(pids) >= 8, "a zygote, three processes and four loader workers"
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(left, timeout=60)[1]


def test_what_a_child_started_ends_when_the_child_is_killed():
    with Child() as child:
        trained(child, workers=2)
        worker = process_of(child)
        loaders = worker.children(recursive=True)
        assert loaders
        worker.kill()
        with pytest.raises(RunFailed, match="killed") as failure:
            child.ask("slice", samples=8, seconds=0.0)
        assert isinstance(failure.value, OutOfMemory)
    assert not psutil.wait_procs(loaders, timeout=60)[1]


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
    Tree(process.pid).end()
    process.communicate()
    assert not shared.exists()


@on_linux
def test_ctrl_c_in_a_terminal_does_not_reach_the_zygote():
    with Child() as child:
        assert os.getsid(zygote_of(child).pid) != os.getsid(0)
