"""An empty store for each test of a panel; no pictures and no photos: they take most of a panel's time."""

import pytest

from perfkit import export
from perfkit.notebook import ladder
from perfkit.show.style import Figure
from perfkit.workloads import files
from tests.unit.studies.fakes import scripted


@pytest.fixture(autouse=True)
def _apart(data_dir, monkeypatch):
    monkeypatch.setattr(ladder.PlanPanel, "kernel_device", None)
    monkeypatch.setattr(export, "script", scripted)
    monkeypatch.setattr(files, "write_photo", lambda file, *_: file.touch())
    monkeypatch.setattr(Figure, "svg", lambda figure: f"<svg><title>{figure.title}</title></svg>")
