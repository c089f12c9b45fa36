"""The grid's Python side: which runs it has, what a person did in the page, deleting."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from perfkit.notebook.history import RunHistory, compared
from perfkit.results.run import Run, decode
from perfkit.results.store import RunStore
from tests.unit.show.fake_runs import again, session

WORKLOAD = session()[0].workload


@pytest.fixture
def problems() -> list[str]:
    return []


@pytest.fixture
def history(problems: list[str]) -> RunHistory:
    return RunHistory(lambda: None, problems.append)


def stored(count: int) -> list[Run]:
    """Stored runs, two of a session, the oldest first."""
    runs = [decode(msgspec.json.encode(run, enc_hook=float)) for run in session()[:2]]
    kept = [
        replace(runs[at % 2], id=f"r{at}", session=f"s{at // 2}", created=f"2026-11-2{at}")
        for at in range(count)
    ]
    for run in kept:
        RunStore().add(run)
    return kept


def rows(history: RunHistory) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in history.grid.rows}


def test_every_measured_run_of_the_workload_the_newest_session_ticked(history: RunHistory) -> None:
    kept = stored(4)
    RunStore().add(replace(kept[0], id="other", workload="tests.support.toy:Toy"))
    RunStore().add(replace(kept[0], id="failed", status="failed"))
    RunStore().add(replace(again(kept)[-1], id="again"))
    history.show_stored(WORKLOAD, lambda entry: True)
    assert list(rows(history)) == ["r3", "r2", "r1", "r0"]
    assert history.ticked() == kept[2:]
    history.show_stored(WORKLOAD, lambda entry: entry.session == "s0")
    assert history.ticked() == kept[:2]




def test_what_is_done_in_the_page_is_kept_beside_the_runs(history: RunHistory) -> None:
    kept = stored(2)
    history.show_stored(WORKLOAD, lambda entry: True)
    for act in (
        {"do": "name", "value": "mine"},
        {"do": "note", "value": "<b>"},
    ):
        history._act({"id": "r1", **act})
    for nonsense in ({}, {"do": "name", "id": "gone", "value": "x"}, {"do": "x", "id": "r1"}):
        history._act(nonsense)
    row = rows(history)["r1"]
    assert (row["name"], row["note"]) == ("mine", "<b>")
    assert [run.title for run in history.ticked()] == [kept[0].title, "mine"]
    assert RunStore().get("r1") == kept[1]
    fresh = RunHistory(lambda: None, lambda text: None)
    fresh.show_stored(WORKLOAD, lambda entry: True)
    assert rows(fresh)["r1"] == row



def test_a_run_that_was_deleted_elsewhere_is_one_message(history: RunHistory, problems: list[str]) -> None:
    stored(2)
    history.show_stored(WORKLOAD, lambda entry: False)
    RunStore().delete(["r1"])
    history.grid.ticked = ["r1", "r0"]
    assert [run.id for run in history.ticked()] == ["r0"]
    assert "no run 'r1'" in problems[0]



def test_a_new_run_is_ticked_with_its_session_and_knows_what_it_started_from(history: RunHistory) -> None:
    stored(2)
    history.show_stored(WORKLOAD, lambda entry: True)
    first, second = (run for run in session(session="new", created="2026-12-01")[:2])
    history.keep(first, "r1")
    assert history.grid.ticked == [first.id], "those of another session are no longer"
    history.keep(second, first.id)
    assert sorted(history.grid.ticked) == sorted([first.id, second.id])
    row = rows(history)[second.id]
    assert row["since"] == first.title and row["changes"]
    assert rows(history)[first.id]["since"] == "data loading"
    history.keep(replace(second, id="bad", status="failed"), "")
    assert "bad" not in rows(history)


def test_ticked_runs_beside_the_oldest_of_them() -> None:
    first, second = session()[:2]
    elsewhere = replace(second, device="sim:v100", id="x", title="elsewhere")
    table = compared([first, second, elsewhere])
    assert table.columns[1] == f"against {first.title}"
    assert "faster" in table.rows[0][1] and table.rows[0][2] == "Loader workers 1"
    assert table.rows[1][1].startswith("n/a: the runs differ in device")


def test_runs_are_deleted(history: RunHistory, problems: list[str]) -> None:
    stored(4)
    history.show_stored(WORKLOAD, lambda entry: True)
    history._act({"do": "delete", "id": "r0"})
    history.delete.click()
    assert list(rows(history)) == ["r1"] and history.grid.ticked == [] and len(RunStore().runs()) == 1
    history.delete.click()
    assert "no run is ticked" in problems[-1]


def test_the_runs_of_a_recording_are_not_deleted(history: RunHistory, problems: list[str]) -> None:
    history.show_recorded(session())
    measured = [run.id for run in session() if run.status == "ok"]
    assert sorted(history.grid.ticked) == sorted(measured) == sorted(rows(history))
    history._act({"do": "delete", "id": measured[0]})
    assert "of a recording" in problems[0] and len(rows(history)) == len(measured)
