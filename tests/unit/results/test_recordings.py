"""Recordings by name: what is there, what is not, and files that are none."""

import pytest

from perfkit import machine
from perfkit.errors import InvalidValue, StoreError
from perfkit.results import recordings
from tests.unit.results.test_run import run

SHIPPED = "cpu-quick"


def test_a_recording_comes_back_with_where_it_is_from(data_dir, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/opt/bin/perfkit", "run", "-o", "/home/me/secret/out.json"])
    kept = [run("r0"), run("r1", status="failed", reason="no memory")]
    path = data_dir / "recordings" / "h200.json"
    recordings.save(kept, path)
    loaded = recordings.load(path)
    assert loaded.runs == kept
    assert loaded.provenance.machine == machine.facts()
    assert loaded.provenance.command == "perfkit run -o out.json"
    assert [file.name for file in path.parent.iterdir()] == ["h200.json"]


ORIGIN = '"provenance": {"machine": {}, "when": "w", "command": "c"}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a recording"),
        ("[" * 100_000, "not a recording"),
        ('{"schema": 1}', "provenance"),
        ('{"schema": 1, ' + ORIGIN + ', "runs": []}', "length >= 1"),
        ('{"schema": 1, ' + ORIGIN + ', "runs": [{"schema": 1}]}', "missing required field `id`"),
        ('{"schema": 1, ' + ORIGIN + ', "runs": [{"schema": 2}]}', "Invalid enum value 2"),
        ('{"schema": 2, "something": "else"}', r"another version of perfkit \(schema 2;"),
    ],
)
def test_a_file_that_is_no_recording_is_one_message(tmp_path, text, words):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(StoreError, match=words):
        recordings.load(tmp_path / "r.json")


def test_a_missing_file_is_one_message(tmp_path):
    with pytest.raises(StoreError, match=r"none\.json: No such file.*Check the path"):
        recordings.load(tmp_path / "none.json")


def own(name):
    """A recording of the user's own."""
    file = machine.runs_folder() / "recordings" / f"{name}.json"
    recordings.save(recordings.find(SHIPPED).runs, file)
    return file


def test_shipped_recordings_have_names_and_a_file_that_is_added_appears(data_dir):
    assert SHIPPED in recordings.available()
    assert "provenance" not in recordings.available()
    file = own("h100")
    assert recordings.available()["h100"] == file
    assert recordings.find("h100").runs == recordings.find(str(file)).runs == recordings.find(SHIPPED).runs


@pytest.mark.parametrize("name", ["cpu-quik", "", "../../pyproject.toml", "/etc/passwd", "missing.json"])
def test_an_unknown_name_lists_what_there_is(name, data_dir):
    own("h100")
    with pytest.raises(InvalidValue, match=f"There are: .*{SHIPPED}.*h100"):
        recordings.find(name)


def test_what_was_played_names_its_origin_and_is_not_recorded_again(tmp_path):
    runs = recordings.played(recordings.find(SHIPPED))
    assert all(run.facts[recordings.ORIGIN].startswith("Recorded 20") for run in runs)
    with pytest.raises(InvalidValue, match="of a recording already"):
        recordings.save(runs, tmp_path / "again.json")
