"""Loss curves: over samples, on equal axes, and where they became NaN."""

from __future__ import annotations

import msgspec

from tests.unit.show.fake_runs import session
from tests.unit.show.test_figures import axes, figure, words_of


def test_losses_are_over_samples() -> None:
    runs = session(gpu=True)
    panels = axes(figure("losses", runs)).child_axes
    assert len(panels) == 10
    curve = panels[3].lines[-1]
    assert list(curve.get_xdata()) == [512 * step for step in range(1, 9)]  # type: ignore[arg-type]
    assert list(curve.get_ydata()) == runs[3].losses  # type: ignore[arg-type]
    assert len({(panel.get_xlim(), panel.get_ylim()) for panel in panels}) == 1


def test_losses_say_where_they_became_nan() -> None:
    run = msgspec.structs.replace(session()[0], losses=[2.0, float("nan"), float("nan")])
    assert "NaN from sample 64 on" in words_of(figure("losses", [run]))
