"""What the searches found, shown: cells, sentences, pictures."""

import pytest

from perfkit.search import tables
from perfkit.search.attribute import Attribution, Effect
from perfkit.search.tune import Tuned, rate
from perfkit.show import document, terminal
from tests.unit.show.fake_runs import session


def effect(name, mean):
    low, high = (None, None) if mean is None else (mean - 0.1, mean + 0.1)
    return Effect(name=name, title=name, alone=1.2, last=None, shapley=mean, low=low, high=high)


WORTH = Attribution(
    effects=[effect("amp", 1.5), effect("compile", None)], together=1.8, sets=2,
    complete=False, left_out={"pinning": "needs a CUDA device"},
)  # fmt: skip


def test_worth_has_cells_and_says_what_is_missing():
    sections = tables.attribution(WORTH)
    rows = [[*map(str, row)] for row in document.table(sections, "what each").rows]
    assert rows[0] == ["amp", "1.20×", "n/a", "1.50× (1.40–1.60)"]
    assert rows[1][-1] == "n/a"
    text = terminal.text(sections)
    assert "pinning is left out: needs a CUDA device" in text
    assert "raise --budget for the rest" in text


def test_what_was_tried_is_listed_the_fastest_first():
    runs = [run for run in session(gpu=True) if run.status == "ok"]
    fields = {"settings": "amp=bf16", "gain": None, "parity": None, "cap_bytes": None, "seconds": 60.0}
    sections = tables.tuning(Tuned(best=max(runs, key=rate), tried=runs, **fields))
    rows = [[*map(str, row)] for row in document.table(sections, "tried").rows]
    assert rows[0][:2] == ["batch size", "✓"]
    assert len(rows) == len(runs) and not any(row[1] for row in rows[1:])
