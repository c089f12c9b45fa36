"""What comes from outside is text, wherever it is shown; a card's Markdown becomes HTML."""

from __future__ import annotations

from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.notebook import layout


def test_html_from_outside_is_text() -> None:
    assert "<b>" not in layout.message("<b>")
    assert "<b>" not in layout.html_table(["<b>"], [["<b>"]])
    assert "<b>" not in layout.code_diff("+<b>")
    assert "<b>" not in layout.folded("<b>", ["<b>"])
    assert "<b>" not in layout.markdown("a <b>word</b>")


def test_a_card_has_headings_that_fit_a_panel() -> None:
    text = layout.markdown(OPTIMIZATIONS["amp"].card())
    assert "<h4>How it works</h4>" in text
    assert "<pre><code" in text
    assert "<h2>" not in text
