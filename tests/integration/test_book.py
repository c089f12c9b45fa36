"""The book's parts: links that lead nowhere are found, and the rule of what becomes a slide."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from docs.book import execute, links, slides


def test_a_link_that_leads_nowhere_and_a_fetch_from_a_network_are_found(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(
        '<a href="page.html#here">1</a><a href="page.html#gone">2</a><a href="gone.html">3</a>'
        '<a href="https://pytorch.org">4</a><a href="#top">5</a><script src="https://cdn.example/x.js"></script>'
    )
    (tmp_path / "page.html").write_text('<h1 id="here"></h1><img src="gone.png">')
    (tmp_path / "style.css").write_text("@font-face { src: url(https://fonts.example/x) }")
    assert links.problems(tmp_path) == [
        "index.html: fetches https://cdn.example/x.js",
        "index.html: no place for page.html#gone",
        "index.html: no file for gone.html",
        "index.html: no place for #top",
        "page.html: no file for gone.png",
        "style.css: fetches from a network",
    ]


TABLE = new_output("display_data", {"text/html": "<table></table>"})
PANEL = new_output("display_data", {"text/html": f'<div class="{execute.PANEL}"></div>'})
WORDS = new_output("display_data", {"text/markdown": "Yes."})


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        (new_markdown_cell("# 01"), "slide"),
        (new_markdown_cell("## Run"), "slide"),
        (new_markdown_cell("More."), "-"),
        (new_markdown_cell("<details>"), "skip"),
        (new_markdown_cell("More.", metadata={"slideshow": {"slide_type": "skip"}}), "skip"),
        (new_markdown_cell("More.", metadata={"slideshow": {"slide_type": "subslide"}}), "slide"),
        (new_code_cell("panel", outputs=[PANEL]), "skip"),
        (new_code_cell("panel", outputs=[PANEL, TABLE]), "slide"),
        (new_code_cell("panel.table()", outputs=[TABLE]), "slide"),
        (new_code_cell("score", outputs=[WORDS]), "-"),
        (new_code_cell("import torch"), "skip"),
        (new_code_cell("import torch", metadata={"tags": ["show-code"]}), "-"),
        (new_code_cell("answer", outputs=[TABLE], metadata={"tags": ["exercise"]}), "skip"),
    ],
)
def test_what_becomes_a_slide(cell: Any, kind: str) -> None:
    assert slides.slide_type(cell) == kind


def test_slides_leave_code_out_unless_it_is_tagged_and_link_only_to_slides() -> None:
    prose = new_markdown_cell("# One\n\n[next](02_data_loading.ipynb) and [how](../docs/measuring.md)")
    hidden = new_code_cell("secret()", outputs=[TABLE])
    shown = new_code_cell("loader = 1", metadata={"tags": ["show-code"]})
    page = slides.page(new_notebook(cells=[prose, hidden, shown]), "<One>")
    assert page.count('<section class="slide"') == 2
    assert "secret" not in page and "loader" in page and "&lt;One&gt;" in page
    assert 'href="02_data_loading.html"' in page and "measuring.md" not in page


def test_a_chapter_that_was_not_executed_says_so() -> None:
    source = execute.chapters()[2]
    cells = execute.plain(source).cells
    assert "not executed" in cells[1].source and not any(cell.get("outputs") for cell in cells)
