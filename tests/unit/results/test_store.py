"""The store of runs: what is kept, found and marked; several kernels at once; damage and full disks."""

import sqlite3
import subprocess
import sys

import pytest

from perfkit.errors import InvalidValue, StoreError
from perfkit.results import stats
from perfkit.results.run import Mechanism, Pairing, Raw
from perfkit.results.stats import AAPair
from perfkit.results.store import RunStore
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


def test_runs_are_listed_newest_first_and_by_what_was_asked(store):
    for number in range(5):
        workload = "my.module:Toy" if number == 3 else "perfkit.workloads.photos:Photos"
        changes = {"session": f"s{number % 2}", "workload": workload}
        store.add(run(f"r{number}", created=f"2026-11-2{number // 2}", **changes))
    assert [kept.id for kept in store.runs()] == ["r4", "r3", "r2", "r1", "r0"]
    assert [line.run.id for line in store.history(limit=2)] == ["r4", "r3"]
    assert [kept.id for kept in store.runs(session="s1")] == ["r3", "r1"]
    for workload in ("my.module:Toy", "Toy", "my.module"):
        assert [line.run.id for line in store.history(workload=workload)] == ["r3"]
    assert len(store.history(workload="photos")) == 4
    assert store.history(workload="hoto") == store.history(workload="%") == []


def test_a_run_is_found_by_a_beginning_that_no_other_has(store):
    for run_id in ("20261120-1", "20261120-12", "20261121-1"):
        store.add(run(run_id))
    assert store.get("20261121").id == "20261121-1"
    assert store.get("20261120-1").id == "20261120-1"  # complete ids come first
    with pytest.raises(InvalidValue, match=r"3 runs begin with '2026'. Give more"):
        store.get("2026")
    with pytest.raises(InvalidValue, match=r"no run '%'.*perfkit runs"):
        store.get("%")


def test_a_line_of_the_history_has_the_run_and_what_the_user_wrote(store):
    store.add(MEASURED)
    store.mark("measured", name="  the quick\none ", note="n" * 1000, guess=1.5)
    store.mark("measured", note="at night")
    (line,) = store.history()
    assert line == (MEASURED, "the quick one", "at night", 1.5)
    store.mark("measured", name="", guess=2.0)
    assert (store.guess("measured"), store.guess("gone")) == (2.0, None)
    assert [(one.name, one.guess) for one in store.history()] == [("", 2.0)]
    assert store.get("measured") == MEASURED


def test_deleting_removes_all_or_none_and_can_be_undone(store):
    for run_id in ("r0", "r1"):
        store.add(run(run_id))
        store.mark(run_id, note=f"note of {run_id}", guess=2.0)
    before = store.history()
    with pytest.raises(InvalidValue, match="no run 'gone'"):
        store.delete(["r0", "gone"])
    assert store.history() == before
    store.delete(["r0"])
    store.delete(["r1"])
    assert store.history() == store.runs() == []
    with pytest.raises(InvalidValue, match="no run 'r0'"):
        store.get("r0")
    store.undelete()
    assert store.history() == before


def test_a_damaged_run_does_not_hide_the_others(store):
    for number in range(4):
        store.add(run(f"r{number}"))
    sql(store, "UPDATE runs SET body = ? WHERE id = 'r1'", b'{"schema": 1, "id"')
    sql(store, "UPDATE runs SET body = ? WHERE id = 'r2'", b'{"schema": 99}')
    assert [kept.id for kept in store.runs()] == ["r3", "r0"]
    assert [problem[:16] for problem in store.problems] == ["left out: run r2", "left out: run r1"]
    with pytest.raises(StoreError, match="not a run of this version"):
        store.get("r1")


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
    with pytest.raises(StoreError, match="File exists.*another name"):
        RunStore(tmp_path / "file" / "runs.sqlite")


def test_two_kernels_may_start_a_store_and_write_at_once(data_dir):
    script = (
        "import sys; from perfkit.results.store import RunStore\n"
        "from perfkit.results.run import Run; store = RunStore()\n"
        "for n in range(20):\n"
        "    store.add(Run(id=f'{sys.argv[1]}-{n}', session='s', created='c', stage='b', workload='w',\n"
        "                  device='cpu', recipe={}))\n"
        "    store.mark(f'{sys.argv[1]}-{n}', guess=2.0)\n"
        "    store.add_noise('cpu', [(0.0, 0.0)])"
    )
    writers = [subprocess.Popen([sys.executable, "-c", script, name]) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert [line.guess for line in RunStore().history()] == [2.0] * 40
    with sqlite3.connect(RunStore().path) as database:
        assert database.execute("SELECT count(*) FROM noise").fetchone() == (40,)
    database.close()


def test_noise_is_kept_for_each_device_by_its_newest_pairs_and_unknown_before(store):
    assert store.noise("cpu") is None
    pairs = [AAPair(0.01, 0.0), AAPair(-0.02, 1e-4)]
    store.add_noise("cpu", pairs[:1])
    store.add_noise("cuda", [AAPair(0.1, 0.0)])
    store.add_noise("cpu", pairs[1:])
    assert store.noise("cpu") == pytest.approx(stats.aa_noise_bound(pairs))
    assert store.noise("cuda") == stats.aa_noise_bound([AAPair(0.1, 0.0)])
    store.add_noise("cpu", [AAPair(0.0, 0.0)] * 30)
    assert store.noise("cpu") == stats.aa_noise_bound([AAPair(0.0, 0.0)] * 30)


def test_processes_of_a_script_are_never_taken_to_differ_less_than_those_elsewhere(store):
    assert (store.noise("cpu"), store.expected_noise("cpu")) == (None, stats.aa_noise_bound(()))
    assert store.expected_noise("cpu", script=True) == 0.05
    assert store.expected_noise("cuda") is store.expected_noise("cuda", script=True) is None
    store.add_noise("cpu", [AAPair(0.0, 0.0)] * 10)
    assert store.expected_noise("cpu") == store.noise("cpu") < 0.05
    assert store.expected_noise("cpu", script=True) == 0.05
    store.add_noise("cpu", [AAPair(0.1, 0.0)] * 10)
    assert store.expected_noise("cpu", script=True) == store.noise("cpu") > 0.05
