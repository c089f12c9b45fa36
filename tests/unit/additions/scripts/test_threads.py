"""Threads of a script's own that compute while it trains."""

import threading

import pytest

from perfkit.additions.scripts import threads
from perfkit.additions.scripts.script import Script
from perfkit.additions.scripts.threads import Threads
from tests.support.settings import settings

CODE = """\
def spin(started, is_over):
    started.set()
    while not is_over:
        pass
def compute(started, is_over):
    started.set()
    while not is_over:
        for number in range(100_000):
            number * number + number
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Looks at a thread that runs a function of the user's; it has used so much of a core meanwhile."""
    names = {}
    file = tmp_path / "loader.py"
    file.write_text(CODE)
    exec(compile(CODE, file, "exec"), names)

    def looked(name, core):
        started, is_over = threading.Event(), []
        thread = threading.Thread(target=names[name], args=(started, is_over))
        thread.start()
        started.wait()
        times = iter([{thread.native_id: 1.0}, {thread.native_id: 1.0 + 10 * core}])
        monkeypatch.setattr(threads, "_cpu_s", lambda: next(times))
        clock = iter([0.0, 10.0])
        monkeypatch.setattr(threads, "clock", lambda: next(clock))
        try:
            watched = Threads(Script(settings(), None))
            for _ in range(30):
                watched.look()
            return list(watched.busy())
        finally:
            is_over.append(True)
            thread.join()

    return looked


def test_a_thread_that_only_asks_again_spins(run, tmp_path):
    (found,) = run("spin", core=0.9)
    assert found.place in (f"{tmp_path}/loader.py:3", f"{tmp_path}/loader.py:4")
    assert found.core == pytest.approx(0.9) and found.spins


def test_a_thread_that_computes_is_told_by_its_line(run, tmp_path):
    (found,) = run("compute", core=0.5)
    assert found.place.startswith(f"{tmp_path}/loader.py:") and not found.spins


def test_a_thread_that_mostly_waits_is_nothing(run):
    assert not run("spin", core=0.1)


def test_the_thread_that_trains_is_none_of_them():
    watched = Threads(Script(settings(), None))
    watched.look()
    assert not watched._seen
