"""Command lines that train."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perfkit.errors import InvalidValue
from perfkit.scripts.launch import Launch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("")
    return tmp_path


def test_a_script_a_module_and_a_command(folder: Path) -> None:
    script = Launch("train.py", ("--lr", "1"), folder=folder)
    assert script.command() == [sys.executable, "train.py", "--lr", "1"]
    assert script.describe() == "python train.py --lr 1" and not script.is_launcher
    module = Launch("package.train", ("x",), module=True)
    assert module.command()[1:] == ["-m", "package.train", "x"]
    command = Launch("torchrun", ("--nproc-per-node", "2", "train.py"), folder=folder)
    assert Path(command.command()[0]).name == "torchrun" and command.is_launcher
    assert Launch("torch.distributed.run", ("train.py",), module=True).is_launcher


@pytest.mark.parametrize(
    ("program", "hint"),
    [("trian.py", "Did you mean 'train.py'"), ("json.tool", "-m json.tool"), ("none/x.py", "Name a Python")],
)
def test_what_is_not_there_is_refused_with_a_hint(folder: Path, program: str, hint: str) -> None:
    with pytest.raises(InvalidValue, match=f"(?s)no script '{program}'.*{hint}"):
        Launch(program, folder=folder).command()
