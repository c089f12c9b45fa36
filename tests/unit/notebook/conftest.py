"""An empty store for each test of a panel, and no pictures but where they are what is tested."""

from pathlib import Path

import pytest

from perfkit.notebook import panel, where


@pytest.fixture(autouse=True)
def _own_store(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one test are not recalled by another, nor is its choice of a device."""
    monkeypatch.setattr(where, "_remembered", where.Place())


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are laid out, but not rendered: that takes most of a panel's time."""
    monkeypatch.setattr(panel.style, "to_svg", lambda figure: f"<svg>{figure.get_figwidth()}</svg>")
