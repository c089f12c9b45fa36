"""An empty store for each test of a panel, and no pictures: they take most of a panel's time."""

import pytest

from perfkit.notebook import ladder
from perfkit.show.document import Figure


@pytest.fixture(autouse=True)
def _apart(data_dir, monkeypatch):
    monkeypatch.setattr(ladder, "_session", None)
    monkeypatch.setattr(Figure, "svg", lambda figure: f"<svg><title>{figure.title}</title></svg>")
