import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from perfkit.errors import InvalidValue, StoreError
from perfkit.results import store as module
from perfkit.results.run import Mechanism, Pairing, Raw, Run
from perfkit.results.store import RunStore, load_recording, save_recording


def run(run_id: str = "20261120-120000-aaaaaa", **changes: Any) -> Run:
    known: dict[str, Any] = {
        "session": "s1",
        "created": "2026-11-20T12:00:00+00:00",
        "stage": "baseline",
        "workload": "perfkit.workloads.photos:Photos",
        "device": "cpu",
        "recipe": {"batch_size": 32},
        "machine": {"id": "m1"},
    }
    return Run(id=run_id, **known | changes)


@pytest.fixture
def store(data_dir: Path) -> RunStore:
    return RunStore()


def sql(store: RunStore, statement: str, *given: Any) -> None:
    with sqlite3.connect(store.path) as database:
        database.execute(statement, given)
    database.close()


# ---------------------------------------------------------------- what is kept


def test_a_run_comes_back_as_it_went_in(store: RunStore) -> None:
    kept = run(
        raw=Raw(step_s=[0.1 + 0.2, 1e-9], warmup_steps=1),
        mechanism=[Mechanism("workers", True, "2 Prozesse – ü")],
        pairings=[Pairing([1.0], [2.0], against="x", role="baseline", interleaved=True)],
        losses=[2.302585092994046],
        h2d_bytes_per_sample=None,
    )
    store.add(kept)
    assert store.get(kept.id) == kept
    assert RunStore().list() == [kept]


def test_the_store_lies_in_the_runs_folder_which_it_makes(data_dir: Path) -> None:
    assert RunStore().path == data_dir / "runs" / "runs.sqlite"
    assert RunStore().path.is_file()
    assert RunStore().list() == []


def test_runs_are_listed_newest_first_and_by_what_was_asked(store: RunStore) -> None:
    for number in range(5):
        own = "my.module:Toy" if number == 3 else "perfkit.workloads.photos:Photos"
        store.add(
            run(f"r{number}", created=f"2026-11-2{number // 2}", session=f"s{number % 2}", workload=own)
        )
    assert [found.id for found in store.list()] == ["r4", "r3", "r2", "r1", "r0"]
    assert [found.id for found in store.list(limit=2)] == ["r4", "r3"]
    assert store.list(limit=0) == []
    assert [found.id for found in store.list(session="s1")] == ["r3", "r1"]
    for workload in ("my.module:Toy", "Toy", "my.module"):
        assert [found.id for found in store.list(workload=workload)] == ["r3"]
    assert len(store.list(workload="photos")) == 4
    assert store.list(workload="hoto") == store.list(workload="%") == []
    assert store.sessions() == ["s0", "s1"]


def test_the_latest_is_one_that_was_measured(store: RunStore) -> None:
    assert store.latest() is None
    store.add(run("r0", stage="amp"))
    store.add(run("r1", stage="amp", machine={}))
    store.add(run("r2", stage="amp", status="failed", reason="no memory"))
    store.add(run("r3", stage="compile"))
    assert [store.latest(stage=stage).id for stage in ("amp", "compile")] == ["r1", "r3"]  # type: ignore[union-attr]
    assert store.latest(stage="amp", machine_id="m1").id == "r0"  # type: ignore[union-attr]
    assert store.latest(workload="photos").id == "r3"  # type: ignore[union-attr]
    assert store.latest(machine_id="another") is None


def test_a_run_is_found_by_a_beginning_that_no_other_has(store: RunStore) -> None:
    for run_id in ("20261120-1", "20261120-12", "20261121-1"):
        store.add(run(run_id))
    assert store.get("20261121").id == "20261121-1"
    assert store.get("20261120-1").id == "20261120-1"  # whole ids come first
    with pytest.raises(InvalidValue, match=r"3 runs begin with '2026'. Give more"):
        store.get("2026")
    with pytest.raises(InvalidValue, match=r"no run '%'.*perfkit runs"):
        store.get("%")


def test_a_run_never_changes(store: RunStore) -> None:
    store.add(run("r0"))
    with pytest.raises(StoreError, match="holds a run of this id already"):
        store.add(run("r0", stage="amp"))
    assert store.get("r0").stage == "baseline"


# ---------------------------------------------------------------- versions


def test_a_store_of_a_newer_perfkit_is_left_alone(store: RunStore) -> None:
    store.add(run("r0"))
    sql(store, "PRAGMA user_version = 99")
    before = store.path.read_bytes()
    with pytest.raises(StoreError, match=r"newer perfkit \(schema 99;.*Update perfkit"):
        RunStore()
    assert RunStore.repair() is None
    assert store.path.read_bytes() == before


def test_one_damaged_or_newer_run_does_not_spoil_the_listing(store: RunStore) -> None:
    for number in range(4):
        store.add(run(f"r{number}"))
    sql(store, "UPDATE runs SET body = ? WHERE id = 'r1'", b'{"schema": 1, "id"')
    sql(store, "UPDATE runs SET body = ? WHERE id = 'r2'", b'{"schema": 99}')
    sql(store, "UPDATE runs SET body = ? WHERE id = 'r0'", b'"\xff"')
    assert [found.id for found in store.list(limit=4)] == ["r3"]
    assert [problem[:6] for problem in store.problems] == ["run r2", "run r1", "run r0"]
    assert "newer perfkit" in store.problems[0]
    assert store.latest() == run("r3")
    assert store.problems == []  # of the last reading only
    with pytest.raises(StoreError):
        store.get("r1")


# ---------------------------------------------------------------- faults


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"this is no database" * 100,
        lambda data: data[:100] + bytes(len(data) - 100),
        lambda data: data[: len(data) // 2],
        lambda data: b"\x00" * len(data),
    ],
)
def test_a_damaged_store_is_moved_aside_only_when_asked(store: RunStore, spoil: Any) -> None:
    for number in range(3):
        store.add(run(f"r{number}", reason="x" * 10_000))
    damaged = spoil(store.path.read_bytes())
    store.path.write_bytes(damaged)
    with pytest.raises(StoreError, match=r"damaged.*RunStore\.repair\(\)"):
        RunStore().list()
    assert store.path.read_bytes() == damaged
    moved = RunStore.repair()
    assert moved is not None
    assert moved.name.startswith("runs.sqlite.damaged-")
    assert moved.read_bytes() == damaged
    assert RunStore().list() == []
    assert RunStore.repair() is None


def test_there_is_nothing_to_repair_in_a_sound_store_or_in_none(store: RunStore) -> None:
    store.add(run("r0"))
    assert RunStore.repair() is None
    assert RunStore().get("r0")
    assert RunStore.repair(store.path.with_name("none.sqlite")) is None


def test_a_table_that_is_gone_counts_as_damage(store: RunStore) -> None:
    sql(store, "DROP TABLE runs")
    with pytest.raises(StoreError, match="damaged"):
        store.list()
    assert RunStore.repair() is not None


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("database or disk is full", "the disk is full.*Free some space"),
        ("attempt to write a readonly database", "cannot be read or written.*permissions"),
        ("unable to open database file", "cannot be read or written.*permissions"),
        ("database is locked", "held by another process.*Wait"),
        ("database disk image is malformed", "damaged.*repair"),
    ],
)
def test_what_sqlite_says_becomes_one_message_with_a_remedy(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, said: str, words: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError(said)

    monkeypatch.setattr(sqlite3, "connect", refuse)
    with pytest.raises(StoreError, match=words) as caught:
        store.add(run())
    assert str(store.path) in str(caught.value)


def test_a_full_disk_loses_nothing_that_was_kept(store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(run("r0"))
    connect = sqlite3.connect

    def small(*given: Any, **more: Any) -> sqlite3.Connection:
        database = connect(*given, **more)
        database.execute("PRAGMA max_page_count = 1")  # SQLite takes the pages that are there already
        return database

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(StoreError, match="the disk is full"):
        store.add(run("r1", reason="x" * 1_000_000))
    monkeypatch.undo()
    assert [found.id for found in RunStore(store.path).list()] == ["r0"]


def test_a_folder_that_cannot_be_made_and_a_path_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "runs.sqlite", tmp_path):
        with pytest.raises(StoreError, match="Check the permissions"):
            RunStore(path)


@pytest.mark.skipif(os.name != "posix", reason="no permission bits")
def test_a_store_that_may_only_be_read_is_one_message(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(run("r0"))
    connect = sqlite3.connect

    def read_only(path: Path, **more: Any) -> sqlite3.Connection:  # chmod would not stop root
        return connect(f"file:{path}?mode=ro", uri=True, **more)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    assert [found.id for found in store.list()] == ["r0"]
    with pytest.raises(StoreError, match="permissions"):
        store.add(run("r1"))


def test_a_process_that_is_killed_in_the_middle_loses_only_its_own_run(store: RunStore) -> None:
    store.add(run("r0"))
    script = (
        "import os, sqlite3, sys; database = sqlite3.connect(sys.argv[1]); "
        "database.execute('UPDATE runs SET stage = 1'); os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script, str(store.path)], check=False)
    store.add(run("r1"))
    assert [found.stage for found in RunStore().list()] == ["baseline", "baseline"]


# ---------------------------------------------------------------- several at once


def test_threads_may_write_at_once(store: RunStore) -> None:
    problems: list[BaseException] = []

    def write(name: int) -> None:
        try:
            own = RunStore()
            for number in range(10):
                own.add(run(f"{name}-{number}"))
                store.list()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=write, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(store.list()) == 40


def test_processes_may_open_a_new_store_and_write_at_once(data_dir: Path) -> None:
    script = (
        "import sys; from perfkit.results.store import RunStore\n"
        "from perfkit.results.run import Run; store = RunStore()\n"
        "for n in range(20): store.add(Run(id=f'{sys.argv[1]}-{n}', session='s', created='c', stage='b', "
        "workload='w', device='cpu', recipe={}))"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, name]) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(RunStore().list()) == 40


# ---------------------------------------------------------------- recordings


def test_a_recording_comes_back_with_where_it_is_from(data_dir: Path) -> None:
    kept = [run("r0"), run("r1", status="failed", reason="no memory")]
    path = data_dir / "recordings" / "h200.json"
    before = module.provenance()
    save_recording(kept, path)
    loaded = load_recording(path)
    assert loaded.runs == kept
    assert (loaded.provenance.machine, loaded.provenance.command) == (before.machine, before.command)
    assert before.when <= loaded.provenance.when
    assert [file.name for file in path.parent.iterdir()] == ["h200.json"]


def test_a_recording_knows_by_itself_where_it_is_from(data_dir: Path) -> None:
    save_recording([run()], data_dir / "r.json")
    origin = load_recording(data_dir / "r.json").provenance
    assert origin.machine["cpu"]["model"]
    assert origin.command
    assert "/" not in origin.command.split()[0]


def test_a_recording_names_files_not_where_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/opt/bin/perfkit", "run", "--record", "/home/me/secret/out.json"])
    assert module.provenance().command == "perfkit run --record out.json"


def test_a_recording_that_fails_leaves_the_old_one(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = data_dir / "r.json"
    save_recording([run("r0")], path)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="the disk is full"):
        save_recording([run("r1")], path)
    assert load_recording(path).runs == [run("r0")]
    assert list(data_dir.iterdir()) == [path]


ORIGIN = '"provenance": {"machine": {}, "when": "w", "command": "c"}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a recording"),
        ("[1, 2]", "not a recording"),
        ("\ud800", "not a recording"),
        ("[" * 100_000, "not a recording"),
        ('{"schema": 1, "runs": []}', "provenance"),
        ('{"schema": 1, ' + ORIGIN + ', "runs": [{"schema": 1}]}', "not a recording"),
        ('{"schema": 1, ' + ORIGIN + ', "runs": [' + "[" * 100_000, "not a recording"),
        ('{"schema": 2, "something": "else"}', r"newer perfkit \(schema 2;.*Update"),
    ],
)
def test_a_file_that_is_no_recording_is_one_message(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "r.json"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(StoreError, match=words):
        load_recording(path)


def test_a_file_that_is_missing_or_far_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StoreError, match=r"none\.json"):
        load_recording(tmp_path / "none.json")
    monkeypatch.setattr(module, "MAX_RECORDING_BYTES", 10)
    (tmp_path / "large.json").write_text("x" * 11)
    with pytest.raises(StoreError, match="no recording"):
        load_recording(tmp_path / "large.json")
