"""An empty store for each test of a panel, no process, and no pictures: they take most of a panel's time."""

import threading

import pytest

from perfkit.notebook import where
from perfkit.show.document import Figure
from perfkit.studies import rungs


@pytest.fixture(autouse=True)
def _apart(data_dir, monkeypatch):
    monkeypatch.setattr(where, "_session", (None, None))
    monkeypatch.setattr(rungs, "resolve", lambda plan: (rungs.expected(plan), []))
    monkeypatch.setattr(Figure, "svg", lambda figure: f"<svg><title>{figure.title}</title></svg>")
    yield
    # A panel reads its places in a thread: it must not outlive the fakes of its test.
    for thread in threading.enumerate():
        if thread.name == "perfkit-read":
            thread.join(30)
