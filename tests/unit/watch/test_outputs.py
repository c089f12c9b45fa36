"""A script's writes stay in the mirror of its folder; reading leads where it would."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfkit.scripts.outputs import Outputs, WriteRefused
from perfkit.scripts.scratch import mirror


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a user's."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    folder = tmp_path / "home" / "project"
    (folder / "out" / "deep").mkdir(parents=True)
    for name in ("train.py", "out/old.txt", "out/deep/kept.txt", "../beside.txt"):
        (folder / name).write_text("original")
    return folder


@pytest.fixture
def scratch(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Outputs:
    """The current folder is its mirror."""
    root = tmp_path / "scratch"
    root.mkdir()
    monkeypatch.chdir(mirror(root, project))
    return Outputs(str(root))


def contents(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_everything_is_read_where_it_is(project: Path, scratch: Outputs) -> None:
    for name in ("train.py", "out/deep/kept.txt", "../beside.txt", f"../../home/{project.name}/train.py"):
        assert Path(name).read_text() == "original"


@pytest.mark.parametrize("name", ["new.txt", "out/new.txt", "out/deep/new.txt", "../new.txt"])
def test_a_new_file_is_made_in_the_mirror_only(project: Path, scratch: Outputs, name: str) -> None:
    before = contents(project.parent)
    scratch.before(name)
    Path(name).write_text("written")
    assert contents(project.parent) == before and Path(name).read_text() == "written"
    assert Path("out/deep/kept.txt").read_text() == "original"


@pytest.mark.parametrize(("replaces", "after"), [(False, "original, more"), (True, ", more")])
def test_a_file_that_is_changed_becomes_a_copy(
    project: Path, scratch: Outputs, replaces: bool, after: str
) -> None:
    scratch.before("out/old.txt", replaces=replaces)
    with open("out/old.txt", "a") as file:
        file.write(", more")
    assert Path("out/old.txt").read_text() == after
    assert contents(project)["out/old.txt"] == "original"


def test_removing_and_renaming_leave_the_folder_alone(project: Path, scratch: Outputs) -> None:
    before = contents(project.parent)
    for path, event in (("out/old.txt", "os.remove"), ("out/deep/kept.txt", "os.rename")):
        scratch.before(path, event)
        os.remove(path)
    assert contents(project.parent) == before
    assert sorted(os.listdir("out")) == ["deep"] and os.listdir("out/deep") == []


def test_a_path_outside_is_refused_and_noted(project: Path, scratch: Outputs, tmp_path: Path) -> None:
    with pytest.raises(WriteRefused, match="only below its working directory"):
        scratch.before(str(project / "absolute.txt"))
    assert scratch.written == [str(project / "absolute.txt")]
    scratch.before(str(tmp_path / "temporary" / "x"))
    scratch.before("/dev/null")
    scratch.before(str(project / "__pycache__" / "train.pyc"))
    scratch.before(str(project), "os.mkdir")  # there already: makedirs(exist_ok=True)
    assert len(scratch.written) == 1


def test_where_nothing_is_measured_paths_are_only_noted(project: Path) -> None:
    outputs = Outputs("")
    outputs.before(str(project / "model.pt"))
    outputs.pause(True)
    outputs.before(str(project / "perfkit-s-own.json"))
    assert outputs.written == [str(project / "model.pt")]
