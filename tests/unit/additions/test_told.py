"""Two recipes by their names, and other studies that give only a result: what is not kept is told."""

from types import SimpleNamespace

import pytest

from perfkit.additions.puzzles import panel as puzzles
from perfkit.additions.search import panel as search
from perfkit.studies import compare as comparing


def losing(*asked, store=None, **more):
    """A study whose runs could not be stored."""
    store = store or asked[-1]
    store.lost.append("it was measured, but not stored: the disk is full")
    return SimpleNamespace(sections=list)


class Match:
    """Two scripts that are compared as `losing` does it."""

    a = SimpleNamespace(_replace=lambda title: None)
    plan = SimpleNamespace(until=lambda *how: None)

    def _replace(self, a, plan):
        return self

    def compare(self, progress, store):
        losing(store=store)
        return SimpleNamespace(comparison=None, verdict=lambda *given: SimpleNamespace(losses=None))


def capstone(monkeypatch):
    monkeypatch.setattr(puzzles, "call", lambda *asked, **more: {})
    monkeypatch.setattr(puzzles, "score", lambda *known: [])
    monkeypatch.setattr(puzzles, "two_scripts", lambda *sides: Match())
    with open("my_capstone.py", "w") as file:
        file.write("import torch")
    puzzles.capstone()


def tune(monkeypatch):
    monkeypatch.setattr(search.tuning, "tune", losing)
    search.tune(device="cpu")


def compare(monkeypatch):
    monkeypatch.setattr(comparing, "compare_candidates", losing)
    comparing.compare("batch_size=8", "batch_size=16")


@pytest.mark.parametrize("study", [compare, tune, capstone])
def test_what_could_not_be_stored_is_told_with_the_result(study, data_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="not stored: the disk is full"):
        study(monkeypatch)
