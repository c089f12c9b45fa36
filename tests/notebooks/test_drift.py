"""What people open is what was edited: every notebook is its source, clean, and free of measured numbers."""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
SOURCES = sorted(FOLDER.glob("src/*.py"))
# A number with a unit of a measurement. Minutes of reading, and figures of the articles, are none of ours.
MEASURED = re.compile(
    r"\d\s?(ms|µs|samples/s|images/s|GB/s|×\s*(as fast|faster|slower))|\d+% (faster|slower|busy)"
)


def test_every_source_has_its_notebook_and_no_notebook_is_without_a_source() -> None:
    assert len(SOURCES) >= 9
    assert [path.stem for path in SOURCES] == sorted(path.stem for path in FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_is_its_source(source: Path) -> None:
    made = jupytext.read(source)
    opened = nbformat.read(FOLDER / f"{source.stem}.ipynb", as_version=4)
    assert [(cell.cell_type, cell.source) for cell in opened.cells] == [
        (cell.cell_type, cell.source) for cell in made.cells
    ], "run `make notebooks`"


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_a_notebook_is_saved_clean(source: Path) -> None:
    opened = nbformat.read(FOLDER / f"{source.stem}.ipynb", as_version=4)
    assert "widgets" not in opened.metadata
    assert opened.metadata.kernelspec.name == "python3"
    for cell in opened.cells:
        assert "recorded" in cell.metadata.get("tags", []) or not cell.get("outputs")


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_prose_holds_no_measured_number(source: Path) -> None:
    for cell in jupytext.read(source).cells:
        if cell.cell_type == "markdown":
            found = [
                line for line in cell.source.splitlines() if MEASURED.search(line) and "article" not in line
            ]
            assert not found


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_the_links_between_notebooks_lead_somewhere(source: Path) -> None:
    for target in re.findall(r"\]\(([\w./]+\.ipynb)\)", source.read_text(encoding="utf-8")):
        assert (FOLDER / target).exists(), target
