"""Machines to order: an empty /proc, /sys and /dev."""

import pytest

from perfkit.machine import cores


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A machine's /proc, /sys and /dev, empty."""
    monkeypatch.setattr(cores, "ROOT", tmp_path)
    return tmp_path


def files(root, texts):
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture(autouse=True)
def any_machine():
    """What reads the machine is tested here: its functions stay as they are, on files that a test makes up."""
