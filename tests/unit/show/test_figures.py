"""Every view: what it drew (by its artists), that nothing overlaps or is cut off, that bad data is borne."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from xml.etree import ElementTree

import msgspec
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from perfkit.errors import InvalidValue
from perfkit.results.run import Raw, Run
from perfkit.show import style
from perfkit.show.figures import VIEWS, figure, view
from tests.unit.show.fake_runs import many, session


def describe(name: str, runs: list[Run]) -> str:
    return view(name, runs).alt


every_view = pytest.mark.parametrize("name", VIEWS)


def axes(made: Figure) -> Axes:
    return made.axes[0]


def shown(made: Figure) -> Iterator[Text]:
    """Texts that a person would see."""
    for artist in made.findobj(Text):
        if artist.get_visible() and artist.get_text().strip():
            yield artist


def words_of(made: Figure) -> str:
    return "\n".join(text.get_text() for text in shown(made))


def test_there_are_five() -> None:
    assert list(VIEWS) == ["throughput", "step_time", "memory", "losses", "utilization"]


def test_unknown_view_names_the_known_ones() -> None:
    with pytest.raises(InvalidValue, match="Did you mean 'throughput'"):
        figure("troughput", session())


def test_matplotlib_is_not_loaded_for_the_table() -> None:
    code = "import sys, perfkit.show.tables; sys.exit('matplotlib' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@every_view
@pytest.mark.parametrize("gpu", [False, True])
@pytest.mark.parametrize(
    ("count", "large"), [(1, False), (2, False), (2, True), (10, False), (10, True), (20, False), (20, True)]
)
def test_no_text_overlaps_or_is_cut_off(name: str, gpu: bool, count: int, large: bool) -> None:
    made = figure(name, many(count, gpu) if count > 10 else session(gpu)[:count], large=large)
    style.to_png(made, int(made.dpi))  # positions are those of the last drawing
    boxes = [(text.get_text(), text.get_window_extent()) for text in _drawn(made)]
    assert len(boxes) >= 2
    width, height = made.canvas.get_width_height()
    for text, box in boxes:
        assert -1 <= box.x0 <= box.x1 <= width + 1, text
        assert -1 <= box.y0 <= box.y1 <= height + 1, text
    for (one, first), (other, second) in itertools.combinations(boxes, 2):
        wide = min(first.x1, second.x1) - max(first.x0, second.x0)
        high = min(first.y1, second.y1) - max(first.y0, second.y0)
        assert wide <= 1 or high <= 2, f"{one!r} overlaps {other!r} by {wide:.0f} × {high:.0f}"


def _drawn(made: Figure) -> list[Text]:
    """Texts within limits: an axis keeps labels of ticks that lie outside and are not drawn."""
    hidden: set[int] = set()
    for ax in made.findobj(Axes):
        for axis in (ax.xaxis, ax.yaxis):  # type: ignore[attr-defined]
            drawn = {id(tick) for tick in axis._update_ticks()} if axis.get_visible() and ax.axison else set()  # type: ignore[attr-defined]
            for tick in [*axis.majorTicks, *axis.minorTicks]:
                if id(tick) not in drawn:
                    hidden |= {id(tick.label1), id(tick.label2)}
    return [text for text in shown(made) if id(text) not in hidden]


@every_view
def test_stages_without_numbers_say_why(name: str) -> None:
    made = figure(name, session(gpu=True))
    text = words_of(made).replace("\n", " ")
    assert "cancelled" in text
    assert "Stopped by" in text


@every_view
@pytest.mark.parametrize("dark", [False, True])
def test_all_text_is_in_the_ink(name: str, dark: bool) -> None:
    for text in shown(figure(name, session(gpu=True), dark=dark)):
        assert to_hex(text.get_color()) == style.ink(dark), text.get_text()


@every_view
def test_hostile_and_empty_data_is_borne(name: str) -> None:
    bare = Run(id="x", session="s", created="", stage="<b>$x^{$", workload="", device="cuda", recipe={})
    odd = msgspec.structs.replace(bare, title="\x00$\\frac{1}\n" * 9, status="failed", reason="$\\bad{ " * 99)
    nothing = msgspec.structs.replace(
        session()[0], raw=Raw([0.0], [0.0], 0, [], [0.0]), losses=[float("nan"), float("inf")], device="cuda"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for runs in ([], [bare], [odd], [bare, odd, nothing], [nothing]):
            made = figure(name, runs)
            ElementTree.fromstring(style.to_svg(made))
            style.to_png(made, 40)
            assert describe(name, runs).startswith(VIEWS[name].title)


@every_view
def test_alt_text_has_the_numbers(name: str) -> None:
    text = describe(name, session(gpu=True))
    assert re.search(r"data loading: [\d.,]+", text)
    assert "AMP: cancelled: Stopped by the person" in text


def test_views_draw_on_any_axes() -> None:
    for one in VIEWS.values():
        one.draw([], Figure().add_subplot(), "black")
        one.draw(session()[:2], Figure().add_subplot(), "black")
