"""One class for all results: sections, a table or a figure by name, what a reader without a kernel sees."""

from __future__ import annotations

import base64

import pytest

from perfkit.errors import InvalidValue
from perfkit.notebook.shown import Shown
from perfkit.show import figures
from perfkit.show.document import Bullets, Section, Table
from tests.unit.show.fake_runs import session

RUNS = session()[:2]


@pytest.fixture
def result() -> Shown[str]:
    first = Table(("part", "bytes"), [["<b>weights</b>", "12 MB"]], "At the peak")
    second = Table(("part", "bytes"), [], "Largest", "nothing was held")
    figure = figures.view("throughput", RUNS)
    return Shown("found", [Bullets(["smaller", "not slower"]), Section("Memory", [first, second, figure])])


def test_a_table_is_found_by_the_beginning_of_its_title(result: Shown[str]) -> None:
    assert "12 MB" in result.table().data
    assert "12 MB" in result.table("at the").data
    assert "nothing was held" in result.table("Largest").data
    with pytest.raises(InvalidValue, match="At the peak, Largest"):
        result.table("Smallest")


def test_a_figure_is_a_png_with_its_numbers_as_text(result: Shown[str]) -> None:
    image = result.plot()
    assert image.data.startswith(b"\x89PNG")
    assert "baseline" in image.alt
    assert image.data != result.plot("throughput", dark=True).data
    with pytest.raises(InvalidValue, match="throughput"):
        result.plot("pie")


def test_a_cell_shows_all_of_it_as_html_png_and_text(result: Shown[str]) -> None:
    bundle = result._repr_mimebundle_()
    assert set(bundle) == {"text/html", "text/plain", "image/png"}
    assert "&lt;b&gt;weights" in bundle["text/html"]
    assert "<svg" in bundle["text/html"]
    assert "12 MB" in bundle["text/plain"]
    assert base64.b64decode(bundle["image/png"]) == result.plot().data
    assert result.words().data == "- smaller\n- not slower"


def test_a_result_without_figures_has_no_png() -> None:
    assert "image/png" not in Shown(1, ["one"])._repr_mimebundle_()


def test_the_text_of_a_result_is_no_output_of_its_own(
    result: Shown[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a kernel rich would display what it only has to return: an empty output above every result."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *given: pytest.fail("displayed"))
    assert "12 MB" in repr(result)
