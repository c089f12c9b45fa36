"""What studies found, shown: cells, sentences, pictures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from perfkit.machine import Check
from perfkit.results.parity import Check as Checked
from perfkit.results.parity import Parity
from perfkit.search.attribution import Attribution, Effect, Interaction
from perfkit.search.tuning import Tuned
from perfkit.show import document, html, tables_studies, terminal
from tests.unit.show.fake_runs import session


def effect(name: str, shapley: float | None) -> Effect:
    low, high = (None, None) if shapley is None else (shapley - 0.1, shapley + 0.1)
    return Effect(
        name=name, title=name, alone=1.2, last=None, stepwise=1.1, shapley=shapley, low=low, high=high
    )


WORTH = Attribution(
    effects=[effect("amp", 1.5), effect("compile", None)], whole=1.8, sets=3, orders=2, exact=True,
    interactions=[Interaction(a="amp", b="compile", factor=1.25)], complete=False,
    left_out={"pinning": "needs a CUDA device"},
)  # fmt: skip


def test_worth_has_cells_a_picture_and_says_what_is_missing() -> None:
    sections = tables_studies.attribution(WORTH)
    rows = document.table(sections, "what each").rows
    assert rows[0] == ["amp", "1.20×", "n/a", "1.10×", "1.50×", "1.40–1.60"]
    assert rows[1][-2:] == ["n/a", "n/a"]
    assert document.table(sections, "interactions").rows == [["amp", "compile", "1.25×"]]
    figure = document.figure(sections, "worth")
    assert "amp 1.50×" in figure.alt
    widths = [patch.get_width() for patch in figure.draw().axes[0].patches]  # type: ignore[attr-defined]
    assert widths[0] == pytest.approx(0.5)
    text = terminal.text(sections)
    assert "pinning is left out: needs a CUDA device" in text
    assert "run it again to continue" in text


def tuned() -> Tuned:
    runs = [run for run in session(gpu=True) if run.status == "ok"]
    best = max(runs, key=lambda run: run.samples_per_s.value if run.samples_per_s else 0)
    return Tuned(
        best=best, settings="amp=bf16", gain=None, parity=None, tried=runs, considered=20, over_memory=[],
        cap_bytes=12_000_000_000, score=None, seconds=60.0,
    )  # fmt: skip


def test_what_was_tried_is_listed_the_fastest_first_and_the_front_is_numbered() -> None:
    sections = tables_studies.tuning(tuned())
    rows = document.table(sections, "tried").rows
    assert rows[0][0] == "compile"
    assert rows[0][1].endswith("(picked)")
    assert [row[1].partition(" ")[0] for row in rows if row[1]] == ["4", "3", "2", "1"]
    ax = document.figure(sections, "pareto").draw().axes[0]
    assert {line.get_label() for line in ax.lines} >= {"tried", "the front", "picked", "memory cap"}


def test_a_failed_parity_is_visible_in_sign_and_words() -> None:
    parity = Parity("amp", "tolerance", [Checked("losses", False, "differ by 2")], False, {})
    text = terminal.text(tables_studies.parity(parity))
    assert "✗" in text
    assert "NOT the same training: losses: differ by 2" in text


def test_the_doctor_names_remedies_and_stages() -> None:
    checks = [Check("compiler", "none", "Install g++", blocking=True)]
    stages = [SimpleNamespace(title="amp", reason=""), SimpleNamespace(title="pinning", reason="no GPU")]
    text = terminal.text(tables_studies.doctor("2 cores", checks, stages), 60)
    assert "problem" in text
    assert "Install g++" in text
    assert "n/a: no GPU" in text
    assert "will be measured" in html.fragment(tables_studies.doctor("2 cores", checks, stages))
