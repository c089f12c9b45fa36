"""What comes from outside is text, wherever it is shown; a card's Markdown becomes HTML."""

from __future__ import annotations

import re

from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.notebook import WhatIf, layout
from tests.unit.show.fake_runs import session


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


def test_a_projector_enlarges_every_panel_old_and_new_and_is_undone() -> None:
    old = WhatIf(session()[:2])
    shown = layout.projector()
    new = WhatIf(session()[:2])
    try:
        for panel in (old, new, shown):
            assert "pk-large" in panel.box._dom_classes
        assert "pk-projector" in shown.box._dom_classes, "the notebook's own text follows this class"
    finally:
        layout.projector(False)
    assert not {"pk-large", "pk-projector"} & {
        name for one in (old, new, shown) for name in one.box._dom_classes
    }


def test_the_style_sheet_sets_no_text_smaller_than_12_pixels_and_every_colour_once() -> None:
    sizes = [
        float(number)
        for number in re.findall(r"(?:font-size|-(?:small|size|head)): ([\d.]+)px", layout.STYLE)
    ]
    assert sizes and min(sizes) >= 12
    colours = re.findall(r"#[0-9a-fA-F]{3,8}\b", layout.STYLE.partition("box-sizing")[2])
    assert not colours, "a colour is a variable, from the theme"
