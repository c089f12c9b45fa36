"""The history beside the runs: derived lines, and what people wrote, in a file that may be damaged."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import InvalidValue, StoreError
from perfkit.results import index as module
from perfkit.results.index import MAX_TEXT, Index, Marks, entry
from perfkit.results.run import Raw, Run
from perfkit.results.store import RunStore


def run(run_id: str = "r0", **changes: Any) -> Run:
    raw = Raw(block_samples_per_s=[100.0, 101.0, 99.0, 100.0, 100.0])
    known: dict[str, Any] = {
        "session": "s1", "created": "2026-11-20T12:00:00+00:00", "stage": "amp", "device": "cpu",
        "workload": "perfkit.workloads.photos:Photos", "recipe": {"amp": "bf16"}, "raw": raw,
    }  # fmt: skip
    return Run(id=run_id, **known | changes)


@pytest.fixture
def store(data_dir: Path) -> RunStore:
    return RunStore()


@pytest.fixture
def derived(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the runs whose lines are derived from now on."""
    ids: list[str] = []

    def counted(of: Run) -> module.Entry:
        ids.append(of.id)
        return entry(of)

    monkeypatch.setattr("perfkit.results.store.entry", counted)
    return ids


def do(path: Path, statement: str, *given: Any) -> None:
    with sqlite3.connect(path) as database:
        database.execute(statement, given)
    database.close()


def test_a_line_holds_what_the_run_says() -> None:
    line = entry(kept := run(status="ok"))
    assert line.samples_per_s == kept.samples_per_s and line.recipe == {"amp": "bf16"}
    assert (line.against_baseline, line.previous, line.disturbed) == (None, "", None)
    for other in (run(status="failed"), run(raw=Raw()), run(raw=Raw(block_samples_per_s=[0.0, 1.0]))):
        assert entry(other).samples_per_s is None


def test_lines_are_derived_when_a_run_is_added_and_not_again(store: RunStore, derived: list[str]) -> None:
    for number in range(3):
        store.add(run(f"r{number}", created=f"2026-11-2{number}"))
    assert derived == ["r0", "r1", "r2"]
    history = RunStore().history()
    assert [line.id for line in history.entries] == ["r2", "r1", "r0"]
    assert history.missing == 0 and derived == ["r0", "r1", "r2"]
    assert [line.id for line in store.history(limit=1).entries] == ["r2"]
    assert store.history(workload="toy").entries == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.unlink(),
        lambda path: do(path, "DROP TABLE entries"),
        lambda path: do(path, "UPDATE entries SET body = ?", b'{"id": 3}'),
        lambda path: do(path, "UPDATE entries SET body = (SELECT body FROM entries WHERE id = 'r1')"),
        lambda path: do(path, "UPDATE entries SET body = NULL WHERE 0"),
        lambda path: do(path, "UPDATE entries SET derivation = 'of older code'"),
        lambda path: path.write_bytes(b"no database at all" * 300),
    ],
)
def test_lines_that_are_lost_damaged_or_old_are_derived_again(store: RunStore, spoil: Any) -> None:
    for number in range(3):
        store.add(run(f"r{number}"))
    whole = store.history()
    spoil(store.index.path)
    assert RunStore().history() == whole
    assert RunStore().history() == whole, "and kept"


def test_a_damaged_file_is_moved_aside_and_said(store: RunStore) -> None:
    store.add(run())
    store.index.path.write_bytes(b"no database at all" * 300)
    assert len(store.history().entries) == 1
    (problem,) = store.problems
    assert "no run is lost" in problem and "runs-history.sqlite.damaged-" in problem
    assert len(list(store.path.parent.glob("*.damaged-*"))) == 1


def test_only_some_lines_are_derived_at_once(store: RunStore, derived: list[str]) -> None:
    for number in range(5):
        store.add(run(f"r{number}", created=f"2026-11-2{number}"))
    store.index.path.unlink()
    derived.clear()
    first = RunStore().history(derive=2)
    assert [line.id for line in first.entries] == ["r4", "r3"] and first.missing == 3
    rest = RunStore().history(derive=10)
    assert len(rest.entries) == 5 and rest.missing == 0 and derived == ["r4", "r3", "r2", "r1", "r0"]


def test_a_run_that_was_deleted_by_hand_is_gone_and_a_damaged_one_is_left_out(store: RunStore) -> None:
    for number in range(3):
        store.add(run(f"r{number}"))
    do(store.path, "DELETE FROM runs WHERE id = 'r1'")
    assert [line.id for line in store.history().entries] == ["r2", "r0"]
    do(store.path, "UPDATE runs SET body = ? WHERE id = 'r2'", b"{")
    store.index.path.unlink()
    assert [line.id for line in store.history().entries] == ["r0"]
    assert "r2 was left out" in store.problems[0]


def test_what_people_write_stays_beside_the_run(store: RunStore) -> None:
    store.add(run())
    store.index.mark("r0", name="  the\nfast one ", star=True)
    store.index.mark("r0", note="x" * 1000)
    (mark,) = RunStore().history().marks.values()
    assert mark == Marks("the fast one", True, "x" * MAX_TEXT)
    assert store.get("r0") == run(), "the run is as it was measured"
    do(store.index.path, "UPDATE marks SET star = 'often'")
    assert store.history().marks == {}, "what is no mark is left out"


def test_a_run_is_deleted_and_brought_back_with_its_marks(store: RunStore) -> None:
    for number in range(2):
        store.add(run(f"r{number}"))
    store.index.mark("r1", note="keep")
    with pytest.raises(InvalidValue, match="no run 'none'"):
        store.delete(["r1", "none"])
    assert len(store.list()) == 2, "all or none"
    removed = store.delete(["r1"])
    assert [line.id for line in store.history().entries] == ["r0"] and removed == [run("r1")]
    store.add(removed[0])
    assert store.get("r1") == run("r1") and store.history().marks["r1"].note == "keep"


def test_a_folder_that_cannot_be_written_costs_names_not_runs(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(run())

    def refuse(*_: object) -> None:
        raise StoreError("the store cannot be read or written", "Check the permissions")

    monkeypatch.setattr(Index, "_do", refuse)
    store.add(run("r1"))
    history = store.history()
    assert [line.id for line in history.entries] == ["r1", "r0"] and history.marks == {}
    assert "cannot be read" in store.problems[0]


def test_threads_may_write_beside_each_other(store: RunStore) -> None:
    problems: list[BaseException] = []

    def write(name: str) -> None:
        try:
            own = RunStore()
            for number in range(5):
                own.add(run(f"{name}-{number}"))
                own.index.mark(f"{name}-{number}", star=True)
                own.history()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    history = store.history()
    assert len(history.entries) == 15 and all(mark.star for mark in history.marks.values())
