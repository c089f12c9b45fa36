"""What is shown of a loop that was observed."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from perfkit.scripts import tables as tables_script
from perfkit.scripts.tracked import Tracked
from perfkit.show import document, style
from tests.unit.show.test_figures import shown, words_of

LOOP = Tracked(step_s=[0.1, 0.11, 0.12, 0.1, 0.11, 3.0], wait_s=[0.02] * 6, samples=[8] * 6)


@pytest.mark.parametrize("dark", [False, True])
def test_the_steps_of_a_loop_are_drawn_in_the_ink_and_an_outlier_is_named(dark: bool) -> None:
    drawn = document.figure(tables_script.tracked(LOOP), "steps").draw(dark)
    assert {to_hex(text.get_color()) for text in shown(drawn)} == {style.ink(dark)}
    assert "1 step above 120 ms, up to 3.00 s" in words_of(drawn)
    assert drawn.axes[0].get_ylim()[1] < 200
