from pathlib import Path

import pytest

from perfkit.machine import folders


def test_data_lies_where_the_variable_says_and_nothing_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERFKIT_DATA", str(tmp_path / "mine"))
    assert folders.cache_folder() == tmp_path / "mine" / "cache"
    assert folders.runs_folder() == tmp_path / "mine" / "runs"
    assert list(tmp_path.iterdir()) == []


def test_data_lies_in_the_checkout_else_where_one_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PERFKIT_DATA")
    assert folders.data_folder() == Path(__file__).parents[3] / "data"
    monkeypatch.setattr(folders, "checkout", lambda: None)
    assert folders.data_folder() == Path("perfkit-data")


def test_a_file_is_written_whole_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    folders.write_atomically(path, b"first")
    folders.write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs.json"
    path.write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(folders.os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        folders.write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
