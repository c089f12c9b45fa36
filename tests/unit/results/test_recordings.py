"""Recordings by name: what is there, what is not, and files that are none."""

import re
import zipfile

import msgspec
import pytest

from perfkit import machine
from perfkit.errors import InvalidValue, StoreError
from perfkit.results import recordings
from tests.unit.results.test_run import run

SHIPPED = "cpu-quick"


def test_a_recording_comes_back_with_where_it_is_from(tmp_path, monkeypatch):
    more = ["--html=/home/me/p.html", "--option=root=/data/me", "--set", "workers=2"]
    more += ["--html=../clients/acme/q.html", "clients/acme", "--workload", "mine.py:Net"]
    monkeypatch.setattr("sys.argv", ["/opt/bin/perfkit", "run", "-o", "/home/me/secret/out.json", *more])
    kept = [run("r0"), run("r1", status="failed", reason="no memory")]
    path = tmp_path / "h200.json"
    path.write_bytes(recordings.content(kept))
    loaded = recordings.find(str(path))
    assert [msgspec.structs.replace(run, origin=None) for run in loaded] == kept
    origin = rf"Recorded 20.* on {re.escape(machine.describe(machine.facts()))}"
    assert all(re.fullmatch(origin, run.origin.describe()) for run in loaded)
    assert {run.origin.command for run in loaded} == {
        "perfkit run -o out.json --html=p.html --option=root=me --set workers=2"
        " --html=q.html acme --workload mine.py:Net"
    }, "no folder of this machine"


def test_what_was_cut_before_its_first_round_is_in_no_recording(tmp_path):
    """Played, it would say that whoever plays it has stopped it."""
    path = tmp_path / "cut.json"
    path.write_bytes(recordings.content([run("r0"), run("r1", status="cancelled", reason="stopped")]))
    assert [each.id for each in recordings.find(str(path))] == ["r0"]
    assert recordings.content([run("r1", status="cancelled", reason="stopped")]) == b"", "nothing has ended"


PLACE = {"machine": {"cpu": "x"}, "when": "w", "command": "c"}
ORIGIN = '"provenance": {"machine": {}, "when": "w", "command": "c"}'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not a recording"),
        ('{"schema": 2, ' + ORIGIN + ', "runs": []}', "length >= 1"),
        ('{"schema": 2, ' + ORIGIN + ', "runs": [{"schema": 2}]}', "missing required field `id`"),
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


def packed(path, content=None, name="ladder.json", packing=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", packing) as archive:
        archive.writestr("../../outside.txt", "never written")
        archive.writestr(name, recordings.content([run("r0")]) if content is None else content)
    return path


def damaged(path, mark, offset):
    """A file with another bit after the last mark."""
    data = bytearray(path.read_bytes())
    data[data.rindex(mark) + offset] ^= 1
    path.write_bytes(data)


def test_a_file_of_make_gpu_is_a_recording_and_nothing_of_it_is_written(tmp_path, data_dir):
    folder = data_dir / "recordings"
    folder.mkdir(parents=True)
    path = packed(folder / "gpu-t4.zip")
    before = sorted(tmp_path.rglob("*"))
    (found,) = recordings.find(str(path))
    assert (found.id, found.origin.command) == ("r0", recordings.provenance().command)
    assert recordings.find("gpu-t4") == [found], "in the data's folder it has a name"
    assert "gpu-t4" in recordings.available()
    assert sorted(tmp_path.rglob("*")) == before
    assert recordings.find(str(packed(tmp_path / "small.zip", name="smoke.json")))[0].id == "r0"


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda path: path.write_bytes(b"no archive"), "not a zip file"),
        (lambda path: packed(path, name="sub/../ladder.json"), "no item named 'ladder.json'"),
        (lambda path: packed(path, "[]"), "not a recording"),
        (lambda path: packed(path, bytes(5000)), "unpacks to over 4,000 bytes"),
        (
            lambda path: damaged(packed(path, b"x" * 200, packing=zipfile.ZIP_LZMA), b"PK\3\4", 60),
            "CRC|orrupt",
        ),
        (lambda path: damaged(packed(path, b"x" * 200), b"PK\3\4", 42), "CRC|invalid|decompress"),
        (lambda path: damaged(packed(path, b"{}"), b"PK\1\2", 8), "password"),
    ],
)
def test_a_file_that_is_not_of_make_gpu_is_one_message(tmp_path, monkeypatch, made, words):
    monkeypatch.setattr(recordings, "MOST_BYTES", 4000)
    made(tmp_path / "gpu.zip")
    with pytest.raises(StoreError, match=words):
        recordings.find(str(tmp_path / "gpu.zip"))


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(recordings, "MOST_BYTES", 4000)
    (tmp_path / "big.json").write_bytes(bytes(5000))
    with pytest.raises(StoreError, match=r"big.json has over 4,000 bytes. Do not trust it"):
        recordings.find(str(tmp_path / "big.json"))


def test_what_was_played_is_not_recorded_again():
    with pytest.raises(InvalidValue, match="from a recording already"):
        recordings.content(recordings.find(SHIPPED))
