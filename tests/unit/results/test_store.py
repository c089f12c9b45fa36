"""The store of runs: what is kept, found and marked; several kernels at once; damage and full disks."""

import math
import sqlite3
import subprocess
import sys
from unittest.mock import Mock

import msgspec
import pytest

from perfkit.errors import InvalidValue, StoreError
from perfkit.results import stats
from perfkit.results.parity import Check, Parity
from perfkit.results.rounds import Pairing
from perfkit.results.schema import Decision, Mechanism, Raw
from perfkit.results.stats import AAPair
from perfkit.results.store import RunStore, keep, warning_store
from tests.unit.results.test_run import run

MEASURED = run(
    "measured",
    raw=Raw(step_s=[0.1 + 0.2, 1e-9], warmup_steps=1, block_samples_per_s=[2.0] * 5),
    mechanism=[Mechanism("workers", True, "2 Prozesse – ü")],
    pairings=[Pairing([2.0] * 5, [1.0] * 5, against="x", role="baseline", interleaved=True)],
    losses=[2.302585092994046],
)


@pytest.fixture
def store(data_dir):
    return RunStore()


def sql(store, statement, *values):
    with sqlite3.connect(store.path) as database:
        database.execute(statement, values)
    database.close()


def test_a_run_comes_back_as_it_went_in_and_never_changes(store, data_dir):
    store.add(MEASURED)
    with pytest.raises(StoreError, match="UNIQUE constraint failed: runs.id"):
        store.add(run("measured", stage="amp"))
    assert store.get("measured") == MEASURED
    assert RunStore().runs() == [MEASURED]
    assert store.path == data_dir / "runs" / "runs.sqlite"


def test_a_run_whose_losses_became_nan_is_read_again_and_so_is_its_proof(store):
    store.add(run("diverged", losses=[2.5, math.nan, math.inf]))
    checks = [Check("losses", False, "they differ")]
    proof = Parity("amp", "tolerance", checks, False, {"candidate": [math.nan], "float32": [1.0]})
    store.prove("diverged", proof)
    (kept,) = store.history()
    losses = store.proof("diverged").losses
    assert (kept.losses[0], losses["float32"], store.problems) == (2.5, [1.0], [])
    assert all(map(math.isnan, [*kept.losses[1:], *losses["candidate"]]))
    store.delete(["diverged"])
    assert store.history() == []


def test_runs_are_listed_newest_first_and_by_what_was_asked(store):
    for number in range(5):
        workload = "my.module:Toy" if number == 3 else "perfkit.workloads.photos:Photos"
        changes = {"session": f"s{number % 2}", "workload": workload}
        store.add(run(f"r{number}", created=f"2026-11-2{number // 2}", **changes))
    assert [kept.id for kept in store.runs()] == ["r4", "r3", "r2", "r1", "r0"]
    assert [kept.id for kept in store.history(limit=2)] == ["r4", "r3"]
    assert [kept.id for kept in store.runs(session="s1")] == ["r3", "r1"]
    assert [kept.id for kept in store.history(workload="my.module:Toy")] == ["r3"]
    assert len(store.history(workload="perfkit.workloads.photos:Photos")) == 4
    assert store.history(workload="%") == []


def test_a_run_is_found_by_a_beginning_that_no_other_has(store):
    for run_id in ("20261120-1", "20261120-12", "20261121-1"):
        store.add(run(run_id))
    assert store.get("20261121").id == "20261121-1"
    assert store.get("20261120-1").id == "20261120-1"  # complete ids come first
    with pytest.raises(InvalidValue, match=r"3 runs begin with '2026'. Give more"):
        store.get("2026")
    with pytest.raises(InvalidValue, match=r"no run '%'.*perfkit runs"):
        store.get("%")


def test_a_guess_is_kept_with_its_run(store):
    store.add(MEASURED)
    assert (store.history(), store.guess("measured")) == ([MEASURED], None)
    store.mark("measured", guess=1.5)
    store.mark("measured", guess=None)
    assert store.history() == [MEASURED]
    assert (store.guess("measured"), store.guess("gone")) == (1.5, None)
    assert store.get("measured") == MEASURED


def test_deleting_removes_all_or_none_and_can_be_undone(store):
    for run_id in ("r0", "r1"):
        store.add(run(run_id))
        store.mark(run_id, guess=2.0)
    before = [(kept, store.guess(kept.id)) for kept in store.history()]
    assert before == [(kept, 2.0) for kept in store.history()]
    with pytest.raises(InvalidValue, match="no run 'gone'"):
        store.delete(["r0", "gone"])
    assert [(kept, store.guess(kept.id)) for kept in store.history()] == before
    store.delete(["r0"])
    store.delete(["r1"])
    assert store.history() == store.runs() == []
    with pytest.raises(InvalidValue, match="no run 'r0'"):
        store.get("r0")
    store.undelete()
    assert [(kept, store.guess(kept.id)) for kept in store.history()] == before


def test_a_damaged_run_does_not_hide_the_others(store):
    for number in range(4):
        store.add(run(f"r{number}"))
    sql(store, "UPDATE runs SET body = ? WHERE id = 'r1'", b'{"schema": 1, "id"')
    sql(store, "UPDATE runs SET body = ? WHERE id = 'r2'", b'{"schema": 99}')
    assert [kept.id for kept in store.runs()] == ["r3", "r0"]
    assert [problem[:16] for problem in store.problems] == ["left out: run r2", "left out: run r1"]
    with pytest.raises(StoreError, match="not a run of this version"):
        store.get("r1")
    with pytest.raises(StoreError, match="its schema is 99, but this version knows only 2. Update perfkit"):
        store.get("r2")


@pytest.mark.parametrize("damage", [b"not a database at all, but as long as one" * 20, None])
def test_a_damaged_file_is_one_error_and_is_left_as_it_is(store, damage):
    for number in range(50):
        store.add(run(f"r{number}", reason="x" * 2000))
    sql(store, "PRAGMA wal_checkpoint(TRUNCATE)")
    content = bytearray(store.path.read_bytes())
    content[4096:-4096] = b"\x55" * (len(content) - 8192)  # pages overwritten in the middle
    store.path.write_bytes(damage or content)
    with pytest.raises(StoreError, match="cannot be used: .*move it away"):
        RunStore().runs()
    assert store.path.read_bytes() == (damage or content)


def test_a_full_disk_loses_nothing_that_was_kept(store, monkeypatch):
    store.add(run("r0"))
    connect = sqlite3.connect

    def small(*values, **more):
        database = connect(*values, **more)
        database.execute("PRAGMA max_page_count = 1")  # SQLite takes the pages that are there already
        return database

    monkeypatch.setattr(sqlite3, "connect", small)
    with pytest.raises(StoreError, match="disk is full. Free"):
        store.add(run("r1", reason="x" * 1_000_000))
    monkeypatch.undo()
    assert [kept.id for kept in RunStore(store.path).runs()] == ["r0"]


def test_a_folder_that_cannot_be_made_is_an_error_in_words(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="File exists.* set PERFKIT_DATA to a different folder"):
        RunStore(tmp_path / "file" / "runs.sqlite")


def test_two_kernels_may_start_a_store_and_write_at_once(data_dir):
    script = (
        "import sys; from perfkit.results.store import RunStore\n"
        "from perfkit.results.run import Run; store = RunStore()\n"
        "for n in range(20):\n"
        "    store.add(Run(id=f'{sys.argv[1]}-{n}', session='s', created='c', stage='b', workload='w',\n"
        "                  device='cpu', recipe={}))\n"
        "    store.mark(f'{sys.argv[1]}-{n}', guess=2.0)\n"
        "    store.add_aa_pairs('cpu', 'default', False, [(0.0, 0.0)])"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, name]) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert [RunStore().guess(kept.id) for kept in RunStore().history()] == [2.0] * 40
    with sqlite3.connect(RunStore().path) as database:
        assert database.execute("SELECT count(*) FROM aa_pairs").fetchone() == (40,)
    database.close()


def test_noise_is_kept_by_device_allocator_and_workers_by_its_newest_pairs(store):
    assert store.spread("cpu") == stats.UNKNOWN
    assert store.spread("cpu", workers=True) == stats.WITH_WORKERS
    pairs = [AAPair(0.03, 1e-6), AAPair(-0.02, 1e-6)]
    store.add_aa_pairs("cpu", "default", False, pairs[:1])
    store.add_aa_pairs("cuda", "default", False, [AAPair(0.1, 0.0)])
    store.add_aa_pairs("cpu", "keep", False, [AAPair(0.2, 0.0)])
    store.add_aa_pairs("cpu", "default", True, [AAPair(0.3, 0.0)])
    store.add_aa_pairs("cpu", "default", False, pairs[1:])
    assert store.spread("cpu") == pytest.approx(stats.spread_of(pairs))
    assert store.spread("cuda") == stats.spread_of([AAPair(0.1, 0.0)])
    assert store.spread("cpu", "keep") == stats.spread_of([AAPair(0.2, 0.0)])
    assert store.spread("cpu", workers=True) == stats.spread_of([AAPair(0.3, 0.0)], stats.WITH_WORKERS)
    store.add_aa_pairs("cpu", "default", False, [AAPair(0.0, 0.0)] * 30)
    assert store.spread("cpu") == stats.spread_of([AAPair(0.0, 0.0)] * 30)


class OfALaptop(RunStore):
    """The same file, read on another machine."""

    machine_id = "a laptop"


def test_noise_of_other_machines_is_another(store):
    store.add_aa_pairs("cpu", "default", False, [AAPair(0.3, 1e-6)] * 4)
    assert OfALaptop(store.path).spread("cpu") == stats.UNKNOWN


def test_an_answer_is_remembered_for_its_machine_and_only_while_it_is_whole(store):
    for name in ("base", "after"):
        store.add(run(name, session="s"))
    store.remember("workers?", "s")
    assert [kept.id for kept in store.remembered("workers?")] == ["base", "after"]
    assert store.remembered("threads?") == store.problems == []
    assert OfALaptop(store.path).remembered("workers?") == []
    store.delete(["base"])
    assert store.remembered("workers?") == []
    assert store.problems == [
        "1 of the runs that were measured earlier for this are deleted. Undo delete, in the Workbench, brings "
        "them back"
    ]
    store.undelete()
    assert len(store.remembered("workers?")) == 2
    sql(store, "UPDATE runs SET body = ? WHERE id = 'after'", b"{}")
    assert store.remembered("workers?") == []
    assert "run after is not a run" in store.problems[1]


def test_the_newest_decision_on_a_stage_counts_whichever_run_it_is_about(store):
    older, newer = (run(name, stage="amp", created=name) for name in ("2026", "2027"))
    for each in (older, newer):
        store.add(each)
    store.decide("here", newer, Decision(False, "user", "slower"), {"amp": "off"})
    store.decide("here", older, Decision(True, "user"), {"amp": "bf16"})
    store.decide("elsewhere", newer, Decision(False, "user"), {"amp": "off"})
    assert store.decisions("here") == {"amp": (Decision(True, "user"), {"amp": "bf16"}, older)}
    assert OfALaptop(store.path).decisions("here") == {}
    store.delete([older.id])
    assert store.decisions("here") == {}
    store.undelete()
    sql(store, "UPDATE runs SET body = ?", b"{}")
    assert store.decisions("here") == {}
    assert ["the run of amp" in problem for problem in store.problems] == [True]


def test_what_cannot_be_written_is_told_and_stops_nothing(store, monkeypatch):
    monkeypatch.setattr(RunStore, "_open", Mock(side_effect=StoreError("the disk is full", "Free it")))
    keep(store, MEASURED)
    store.add_aa_pairs("cpu", "default", False, [AAPair(0.0, 0.0)])
    keep(None, MEASURED)
    assert store.lost == [
        "baseline was measured, but not stored: the disk is full. Free it",
        "the A/A noise was measured, but not stored: the disk is full. Free it",
    ]


def test_whoever_only_gets_a_result_is_warned_of_what_is_not_kept(data_dir, monkeypatch):
    def study():
        with warning_store() as unseen:
            monkeypatch.setattr(
                RunStore, "_open", Mock(side_effect=StoreError("the disk is full", "Free it"))
            )
            keep(unseen, MEASURED)

    with pytest.warns(UserWarning, match="baseline was measured, but not stored: the disk is full"):
        study()


def test_a_file_of_version_1_keeps_its_runs_and_one_of_a_later_version_is_left_alone(data_dir):
    path = data_dir / "runs" / "runs.sqlite"
    path.parent.mkdir(parents=True)
    with sqlite3.connect(path) as database:
        database.executescript(
            "PRAGMA journal_mode = WAL; CREATE TABLE runs (id TEXT PRIMARY KEY, created TEXT NOT NULL, "
            "session TEXT NOT NULL, workload TEXT NOT NULL, name TEXT NOT NULL DEFAULT '', note TEXT NOT NULL "
            "DEFAULT '', guess REAL, body BLOB NOT NULL, deleted INTEGER NOT NULL DEFAULT 0);"
            "CREATE TABLE noise (device TEXT, log_ratio REAL, scatter REAL); INSERT INTO noise VALUES ('cpu', 1, 0)"
        )
        values = ("measured", "c", "s", "w", msgspec.json.encode(MEASURED))
        database.execute(
            "INSERT INTO runs (id, created, session, workload, body) VALUES (?, ?, ?, ?, ?)", values
        )
    database.close()
    store = RunStore(path)
    assert store.runs() == [MEASURED]
    assert store.spread("cpu") == stats.UNKNOWN, "it may be of another machine"
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert database.execute("PRAGMA user_version").fetchone() == (4,)
        database.execute("PRAGMA user_version = 99")
    database.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="of a later version of perfkit. Update perfkit"):
        RunStore(path)
    assert path.read_bytes() == before
