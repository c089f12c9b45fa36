"""Recordings by name: what is there, what is not, and files that are none."""

import re

import msgspec
import pytest

from perfkit import machine
from perfkit.errors import InvalidValue, StoreError
from perfkit.results import recordings
from tests.unit.results.test_run import run

SHIPPED = "cpu-quick"


def test_a_recording_comes_back_with_where_it_is_from(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/opt/bin/perfkit", "run", "-o", "/home/me/secret/out.json"])
    kept = [run("r0"), run("r1", status="failed", reason="no memory")]
    path = tmp_path / "h200.json"
    path.write_bytes(recordings.text(kept))
    loaded = recordings.find(str(path))
    assert [msgspec.structs.replace(run, origin=None) for run in loaded] == kept
    origin = rf"Recorded 20.* on {re.escape(machine.describe(machine.facts()))}"
    assert all(re.fullmatch(origin, run.origin.describe()) for run in loaded)
    assert {run.origin.command for run in loaded} == {"perfkit run -o out.json"}, "no folder of this machine"


PLACE = {"machine": {"cpu": "x"}, "when": "w", "command": "c"}
ORIGIN = '"provenance": {"machine": {}, "when": "w", "command": "c"}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a recording"),
        ('{"schema": 1, ' + ORIGIN + ', "runs": []}', "length >= 1"),
        ('{"schema": 1, ' + ORIGIN + ', "runs": [{"schema": 1}]}', "missing required field `id`"),
        (msgspec.json.encode({"provenance": PLACE, "runs": [run("r0")]}).decode(), "in a different way"),
    ],
)
def test_a_file_that_is_no_recording_is_one_message(tmp_path, text, words):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(StoreError, match=words):
        recordings.find(str(tmp_path / "r.json"))


@pytest.mark.parametrize("name", ["cpu-quik", "", "../../pyproject.toml", "/etc/passwd", "missing.json"])
def test_an_unknown_name_lists_what_there_is(name):
    assert "provenance" not in recordings.available()
    with pytest.raises(InvalidValue, match=f"There are: .*{SHIPPED}"):
        recordings.find(name)


def test_what_was_played_is_not_recorded_again():
    with pytest.raises(InvalidValue, match="of a recording already"):
        recordings.text(recordings.find(SHIPPED))
