"""What comes from outside is text, wherever it is shown; a card's Markdown becomes HTML."""

from __future__ import annotations

from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.notebook import layout


def test_html_from_outside_is_text() -> None:
    assert "<b>" not in layout.message("<b>")
    assert "<b>" not in layout.markdown("a <b>word</b>")


def test_a_card_has_headings_that_fit_a_panel() -> None:
    text = layout.markdown(OPTIMIZATIONS["amp"].prose)
    assert "<h4>How it works</h4>" in text
    assert "<pre><code" in text
    assert "<h2>" not in text


def test_a_download_holds_the_whole_text() -> None:
    link = layout.download("print('ä')", "train.py", "text/x-python")
    assert 'download="train.py"' in link
    assert "cHJpbnQoJ8OkJyk=" in link
