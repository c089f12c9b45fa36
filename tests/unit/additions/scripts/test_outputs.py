"""A script's writes stay in the mirror of its folder; reading leads where it would."""

import os
from pathlib import Path

import pytest

from perfkit.additions.scripts.outputs import Outputs, unfold


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A folder as a user's."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "new" / "cache"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("HOME", str(tmp_path / "nobody"))
    folder = tmp_path / "home" / "project"
    (folder / "out" / "deep").mkdir(parents=True)
    for name in ("train.py", "out/old.txt", "out/deep/kept.txt", "../beside.txt"):
        (folder / name).write_text("original")
    return folder


@pytest.fixture
def scratch(project, tmp_path, monkeypatch):
    """The current folder is its mirror."""
    root = str(tmp_path / "scratch")
    unfold(root, f"{root}{project}")
    monkeypatch.chdir(f"{root}{project}")
    return Outputs(root)


def test_a_file_whose_mode_is_changed_keeps_its_contents(project, scratch):
    scratch.hook("os.chmod", ("out/old.txt", 0o600, -1))
    os.chmod("out/old.txt", 0o600)
    assert Path("out/old.txt").read_text() == "original"
    assert (project / "out/old.txt").stat().st_mode & 0o777 != 0o600


def test_removing_and_renaming_leave_the_folder_alone(project, scratch):
    for path, event in (("out/old.txt", "os.remove"), ("out/deep/kept.txt", "os.rename")):
        scratch.before(path, event)
        os.remove(path)
    os.rename("out/deep", "out/moved")
    scratch.before("out/moved/new.txt")
    Path("out/moved/new.txt").write_text("more")
    assert (project / "out/old.txt").exists() and (project / "out/deep/kept.txt").exists()
    assert not (project / "out/deep/new.txt").exists()
    assert os.listdir("out") == ["moved"] and os.listdir("out/moved") == ["new.txt"]


def test_a_path_outside_is_refused(project, scratch, tmp_path):
    with pytest.raises(PermissionError, match="a copy of its folder"):
        scratch.before(str(project / "absolute.txt"))
    scratch.before(str(tmp_path / "temporary" / "x"))
    scratch.before("/dev/null")
    scratch.before(str(project), "os.mkdir")  # there already: makedirs(exist_ok=True)
    scratch.before(str(tmp_path / "new"), "os.mkdir")  # on the way to a cache
