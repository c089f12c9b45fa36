"""Command lines that train."""

import sys
from pathlib import Path

import pytest

from perfkit.errors import InvalidValue
from perfkit.scripts.launch import Launch


def test_a_script_and_a_module(tmp_path: Path):
    (tmp_path / "train.py").write_text("")
    script = Launch("train.py", ("--lr", "1"), folder=tmp_path)
    assert script.command() == [sys.executable, "train.py", "--lr", "1"]
    assert script.describe() == "python train.py --lr 1"
    assert Launch("package.train", ("x",), module=True).command() == [
        sys.executable, "-m", "package.train", "x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("trian.py", "no script 'trian.py'.*Did you mean 'train.py'"),
        ("none/x.py", "no script 'none/x.py'.*Name a Python"),
        ("torchrun", "starts several processes.*as a single rank"),
    ],
)
def test_what_cannot_be_watched_is_refused_with_a_hint(tmp_path: Path, program: str, message: str):
    (tmp_path / "train.py").write_text("")
    with pytest.raises(InvalidValue, match=f"(?s){message}"):
        Launch(program, folder=tmp_path).command()
