"""Measuring processes that are forked from a server: like new ones in all but the time they take to start."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from perfkit.errors import Cancelled, RunFailed
from perfkit.process import fork
from perfkit.process.child import Child
from perfkit.worker.messages import Describe

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.usefixtures("no_orphans"),
    pytest.mark.skipif(sys.platform != "linux", reason="a fork without exec is safe on Linux alone"),
]


@pytest.fixture(autouse=True)
def _own_server() -> Iterator[None]:
    fork.restart()
    yield
    fork.restart()


def toy(workload: str = "tests.support.toy:Toy") -> Describe:
    return Describe(workload=workload, preset="smoke", options={}, device="cpu")


def server_of(child: Child) -> psutil.Process:
    found = psutil.Process(child.pid).parent()
    assert found
    return found


def test_children_share_a_server_and_nothing_else() -> None:
    with Child() as first, Child() as second:
        assert first.ask(toy()).reference == second.ask(toy()).reference
        assert server_of(first).pid == server_of(second).pid != os.getpid()
        for child in (first, second):
            assert os.getpgid(child.pid) == os.getsid(child.pid) == child.pid
            assert psutil.Process(child.pid).name() == "perfkit.worker"
        first.stop()
        assert not psutil.pid_exists(first.pid)
        assert second.ask(toy()).reference


def test_cancelled_while_the_server_starts_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    stop = threading.Event()
    stop.set()
    with pytest.raises(Cancelled):
        Child(cancelled=stop)
    assert not list(tmp_path.iterdir())
    with Child() as child:
        assert child.ask(toy()).reference


def test_the_start_counts_what_a_new_process_would_have_imported() -> None:
    with Child(), Child() as second:
        server = server_of(second)
        imported = second.started - server.create_time()
        assert psutil.Process(second.pid).create_time() - second.started > 0.3  # torch alone takes longer
        assert 0 <= imported < psutil.Process(second.pid).create_time() - server.create_time()


def test_a_child_finds_its_own_environment_folder_and_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a new process does: a variable that is read late, the folder, and modules that lie in it."""
    (tmp_path / "own.py").write_text(
        textwrap.dedent(
            """
            import os, pathlib, tempfile
            pathlib.Path("seen").write_text("|".join([
                os.environ["PERFKIT_SEEN"], os.getcwd(), tempfile.gettempdir(), str(os.getppid())]))
            from tests.support.toy import Toy
            """
        )
    )
    with Child():
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("PERFKIT_SEEN", "late")
        with Child() as second:
            second.ask(toy("own:Toy"))
            variable, folder, temporary, parent = (tmp_path / "seen").read_text().split("|")
            assert (variable, folder) == ("late", str(tmp_path))
            assert Path(temporary).is_dir()
            assert int(parent) == server_of(second).pid
        assert not Path(temporary).exists()


def test_another_environment_gets_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with Child() as first:
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        with Child() as second:
            assert server_of(first).pid != server_of(second).pid
            assert second.ask(toy()).facts.threads == 1
        assert first.ask(toy()).reference


def test_when_the_server_dies_its_children_do_and_the_next_one_starts() -> None:
    child = Child()
    server_of(child).kill()
    with pytest.raises(RunFailed, match="killed"):
        child.ask(toy())
    child.stop()
    with Child() as next_one:
        assert next_one.ask(toy()).reference


def plant(folder: Path, first_line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torchvision of one's own, which the toy does without."""
    for name in ("torchvision", "torchvision/io", "torchvision/models", "torchvision/transforms/v2"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").touch()
    (folder / "torchvision" / "__init__.py").write_text(first_line + "\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def test_where_an_import_has_asked_for_the_gpu_a_child_is_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, "import torch; torch.cuda._is_in_bad_fork = lambda: True", monkeypatch)
    with Child() as child:
        assert child.ask(toy()).reference
        assert server_of(child).pid != os.getpid()
        assert psutil.Process(child.pid).cmdline()[-1] == "perfkit.worker"


def test_where_no_server_starts_a_child_is_a_new_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(tmp_path, "raise ImportError('planted')", monkeypatch)
    with Child() as child:
        assert server_of(child).pid == os.getpid()
        assert child.ask(toy()).reference


def test_the_server_ends_with_the_process_it_belongs_to() -> None:
    """Also if that one is killed while a child measures."""
    script = """
        import os, signal, psutil
        from perfkit.process.child import Child
        child = Child()
        print(child.pid, psutil.Process(child.pid).ppid(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, check=False
    ).stdout
    left = [psutil.Process(pid) for pid in map(int, said.split()) if psutil.pid_exists(pid)]
    assert len(said.split()) == 2
    assert not psutil.wait_procs(left, timeout=20)[1]


def test_a_server_that_still_imports_ends_with_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing = tmp_path / "importing"
    plant(
        tmp_path,
        f"import pathlib, time; pathlib.Path({str(importing)!r}).touch(); time.sleep(120)",
        monkeypatch,
    )
    me, stop = psutil.Process(), threading.Event()
    before = set(me.children())

    def start() -> None:
        with pytest.raises(Cancelled):
            Child(cancelled=stop)

    starting = threading.Thread(target=start)
    starting.start()
    while not importing.exists():
        time.sleep(0.05)
    (server,) = set(me.children()) - before
    stop.set()
    starting.join()
    fork.restart()
    assert not psutil.wait_procs([server], timeout=30)[1]


def test_a_child_that_cannot_notice_its_parent_s_end_is_killed(tmp_path: Path) -> None:
    """A call that holds the interpreter's lock keeps the thread from running that reads the commands."""
    held = tmp_path / "held"
    code = f"import ctypes, pathlib; pathlib.Path({str(held)!r}).touch(); ctypes.PyDLL(None).sleep(120)"
    (tmp_path / "stuck.py").write_text(code)
    script = """
        import os, pathlib, psutil, signal, sys, time
        from perfkit.process.child import Child
        from perfkit.worker.messages import Describe
        child = Child()
        print(child.pid, psutil.Process(child.pid).ppid(), flush=True)
        child.send(Describe(workload="stuck:Stuck", preset="smoke", options={}, device="cpu"))
        while not pathlib.Path("held").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    said = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True, check=False,
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
    ).stdout  # fmt: skip
    assert len(said.split()) == 2
    left = [psutil.Process(pid) for pid in map(int, said.split()) if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(left, timeout=30)[1]
