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
def ask(started, is_over):
    rows = Rows(started, is_over)
    while rows.empty(): pass
def compute_by_an_operator(started, is_over):
    rows = Rows(started, is_over)
    while rows: pass
"""
LIBRARY = """\
class Rows:
    def __init__(self, *about):
        self.about = about
    def empty(self):
        started, is_over = self.about
        started.set()
        while not is_over:
            pass
        return False
    def __bool__(self):
        return self.empty()
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Looks at a thread that runs a function of the user's; it has used so much of a core meanwhile."""
    names = {}
    file = tmp_path / "loader.py"
    file.write_text(CODE)
    exec(compile(CODE, file, "exec"), names)
    exec(compile(LIBRARY, tmp_path / "site-packages" / "rows.py", "exec"), names)

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


def test_a_thread_that_asks_an_object_spins(run):
    (found,) = run("ask", core=0.9)
    assert found.spins


def test_a_thread_that_computes_in_a_library_is_not_told_to_wait(run):
    (found,) = run("compute_by_an_operator", core=0.9)
    assert threads.text_at(found.place) == "while rows: pass" and not found.spins


@pytest.mark.parametrize(
    ("text", "called", "asks"),
    [
        ("while not (stop.is_set() or len(rows) > 4):", "", True),
        ("while not (stop.is_set() or len(rows) > 4):", "is_set", True),
        ("if rows.empty(): continue", "empty", True),
        ("if np.linalg.svd(a)[1][0] > 1e9:", "", False),  # a function in C has no frame
        ("while not stop.is_set(): work(rows)", "is_set", False),
        ("while a @ b > limit:", "__matmul__", False),
        ("rows.empty()", "empty", False),
    ],
)
def test_a_line_asks_if_it_calls_nothing_that_may_compute(text, called, asks):
    assert threads._only_polls(text, called) == asks


def test_a_thread_that_mostly_waits_is_nothing(run):
    assert not run("spin", core=0.1)


def test_the_thread_that_trains_is_none_of_them():
    watched = Threads(Script(settings(), None))
    watched.look()
    assert threading.get_native_id() not in watched._looks  # threads of other tests may live on
