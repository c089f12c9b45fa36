"""Recordings by name: what is there, what is not, and files that are none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfkit import machine
from perfkit.errors import InvalidValue, StoreError
from perfkit.results import recordings, store

SHIPPED = "cpu-quick"


def own(name: str, change: Any = None) -> Path:
    """A recording of the user's own: the shipped one, with a change of its data."""
    folder = machine.own_recordings_folder()
    folder.mkdir(parents=True, exist_ok=True)
    data = json.loads(recordings.available()[SHIPPED].read_text(encoding="utf-8"))
    if change:
        change(data)
    (folder / f"{name}.json").write_text(json.dumps(data), encoding="utf-8")
    return folder / f"{name}.json"


def test_shipped_recordings_have_names_and_a_file_that_is_added_appears(data_dir: Path) -> None:
    assert SHIPPED in recordings.available()
    assert "provenance" not in recordings.available()
    file = own("h100")
    assert recordings.available()["h100"] == file
    assert recordings.find("h100").runs == recordings.find(SHIPPED).runs


def test_a_file_can_be_named_too(tmp_path: Path, data_dir: Path) -> None:
    file = shutil.copy(recordings.available()[SHIPPED], tmp_path / "sent.json")
    assert recordings.find(str(file)).runs


@pytest.mark.parametrize("name", ["cpu-quik", "", "../../pyproject.toml", "/etc/passwd", "missing.json"])
def test_an_unknown_name_lists_what_there_is(name: str, data_dir: Path) -> None:
    own("h100")
    with pytest.raises(InvalidValue, match=f"There are: .*{SHIPPED}.*h100"):
        recordings.find(name)


def drop_runs(data: dict[str, Any]) -> None:
    data["runs"] = []


def break_machine(data: dict[str, Any]) -> None:
    data["provenance"]["machine"] = {"cpu": "none"}


def break_run(data: dict[str, Any]) -> None:
    data["runs"][0]["raw"]["step_s"] = ["__import__('os')"]


@pytest.mark.parametrize("change", [drop_runs, break_machine, break_run])
def test_a_hostile_file_is_refused_and_the_chooser_leaves_it_out(change: Any, data_dir: Path) -> None:
    own("hostile", change)
    with pytest.raises(StoreError, match="not a recording of perfkit"):
        recordings.find("hostile")
    assert "hostile" not in recordings.readable()
    assert SHIPPED in recordings.readable()


def test_what_was_played_names_its_origin_and_is_not_recorded_again(tmp_path: Path) -> None:
    runs = recordings.played(recordings.find(SHIPPED))
    assert all(run.facts[store.ORIGIN].startswith("Recorded 20") for run in runs)
    with pytest.raises(InvalidValue, match="of a recording already"):
        store.save_recording(runs, tmp_path / "again.json")
