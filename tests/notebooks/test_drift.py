"""What people open is what was edited: every notebook is its source, clean, and free of measured numbers."""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
import nbformat
import pytest

FOLDER = Path(__file__).parents[2] / "notebooks"
SOURCES = sorted(FOLDER.glob("src/*.py"))
STAGES = [path for path in SOURCES if "01" <= path.stem[:2] <= "08"]
TOOLS = ("00_start_here", "10_workbench")  # pages to use, without an exercise
CHAPTERS = [path for path in SOURCES if path.stem not in TOOLS]
PUZZLES = sorted(FOLDER.glob("src/puzzles/**/*.py"))
# A number with a unit of a measurement. Minutes of reading, and figures of the articles, are none of ours.
MEASURED = re.compile(
    r"\d\s?(ms|µs|us|s|MB|GB|GiB|MiB|W|(samples|images)/s|[GM]B/s)(?![\w-])"
    r"|\d\s?% (faster|slower|busy|of)|\d×|\d (times|x) (as fast|faster|slower)"
)

each_source = pytest.mark.parametrize(
    "source", [*SOURCES, *PUZZLES], ids=lambda path: str(path.relative_to(FOLDER / "src"))
)


def notebook_of(source: Path) -> Path:
    """The notebook that is made of a source."""
    return (FOLDER / source.relative_to(FOLDER / "src")).with_suffix(".ipynb")


def test_every_source_has_its_notebook_and_no_notebook_is_without_a_source() -> None:
    assert len(SOURCES) >= 9
    found = [*FOLDER.glob("*.ipynb"), *FOLDER.glob("puzzles/**/*.ipynb")]
    assert sorted(map(notebook_of, [*SOURCES, *PUZZLES])) == sorted(
        path for path in found if ".ipynb_checkpoints" not in path.parts
    )


@each_source
def test_a_notebook_is_its_source(source: Path) -> None:
    made = jupytext.read(source)
    opened = nbformat.read(notebook_of(source), as_version=4)
    assert [(cell.cell_type, cell.source, cell.metadata) for cell in opened.cells] == [
        (cell.cell_type, cell.source, cell.metadata) for cell in made.cells
    ], "run `make notebooks`"


@each_source
def test_a_notebook_is_saved_clean(source: Path) -> None:
    opened = nbformat.read(notebook_of(source), as_version=4)
    nbformat.validate(opened)
    assert "widgets" not in opened.metadata
    assert opened.metadata.kernelspec.name == "python3"
    for cell in opened.cells:
        assert "recorded" in cell.metadata.get("tags", []) or not cell.get("outputs")


def measured_figures(prose: str) -> list[str]:
    """Lines with a figure that a result should give, not the prose; a line may quote the article's."""
    return [line for line in prose.splitlines() if MEASURED.search(line) and "article" not in line.lower()]


@each_source
def test_the_prose_holds_no_measured_number(source: Path) -> None:
    for cell in jupytext.read(source).cells:
        is_quiz = cell.source.startswith("**1. ")  # its figures are assumptions
        if cell.cell_type == "markdown" and not is_quiz:
            assert not measured_figures(cell.source)


@pytest.mark.parametrize(
    "line", ["It takes 12.3 ms.", "1.5× as fast", "32% faster", "1,200 samples/s", "0.8 s a step", "11.3 GB"]
)
def test_a_measured_number_would_be_found(line: str) -> None:
    assert measured_figures(line)
    assert not measured_figures(f"The article: {line}")


@pytest.mark.parametrize(
    "line", ["*About 2 minutes.*", "sizes in multiples of 8", "32 × 32 pixels", "float32 is"]
)
def test_other_numbers_are_allowed(line: str) -> None:
    assert not measured_figures(line)


@each_source
def test_a_notebook_says_at_its_top_how_long_it_takes_and_what_it_needs(source: Path) -> None:
    top = jupytext.read(source).cells[0].source
    assert re.search(r"\d minutes?\b", top)
    assert "Needs:" in top


@pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_and_the_list_of_chapters_agree_on_its_minutes(source: Path) -> None:
    top = jupytext.read(source).cells[0].source
    stated = re.search(r"About (.+?) minutes? at the preset `quick` .* `paper` on a GPU at most (\d+) ", top)
    listed = re.search(rf"\({source.stem}\.ipynb\) \|.*?\| (.+?) \| (.+?) \|", SOURCES[0].read_text("utf-8"))
    assert listed, "chapter 00 lists it"
    assert (stated.groups() if stated else ("reading", "reading")) == listed.groups()


@pytest.mark.parametrize("source", CHAPTERS, ids=lambda path: path.stem)
def test_a_chapter_has_an_exercise_with_a_check_and_an_answer(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    assert "## Exercise" in text
    assert "<details>" in text
    tags = [tag for cell in jupytext.read(source).cells for tag in cell.metadata.get("tags", [])]
    assert tags == ["exercise", "check"]


def test_the_chapters_of_the_ladder_are_all_there() -> None:
    assert len(STAGES) == 8


@pytest.mark.parametrize("source", STAGES, ids=lambda path: path.stem)
def test_a_chapter_of_the_ladder_has_all_its_parts(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    parts = ["redict before you run", "\npanel\n", "panel.run()", "## When "]
    assert not [part for part in parts if part not in text]


@each_source
def test_the_links_between_notebooks_lead_somewhere(source: Path) -> None:
    targets = re.findall(r"\]\(([\w./]+\.ipynb)\)", source.read_text(encoding="utf-8"))
    assert targets
    here, solutions = notebook_of(source).parent, FOLDER / "src" / "puzzles" / "solutions"
    if not solutions.exists():  # withheld
        targets = [target for target in targets if not target.startswith("solutions/")]
    assert not [target for target in targets if not (here / target).exists()]
