"""Makes slides of the chapters 00 to 08: one HTML file each, which needs no network and no server.

    make slides                        # build/slides/01_baseline.html …
    make slides ARGS="--only 02,06"

What becomes a slide: each heading of the first or second level begins one, each cell with a table or a figure
has one of its own, code is left out. Notebook metadata overrides it, cell by cell, as for `jupyter nbconvert
--to slides`: `slideshow={"slide_type": "slide"}`, `"-"` (goes on with the slide before), or `"skip"`; the tag
`show-code` shows a cell's code. Keys: arrows, space, Home, End.
"""

from __future__ import annotations

import argparse
import copy
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from jinja2 import Environment, FileSystemLoader
from nbconvert import HTMLExporter
from nbconvert.preprocessors import TagRemovePreprocessor
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter

from docs.book import execute
from perfkit.results import recordings

_SKIPPED_TAGS = {"exercise", "check"}
_HIDDEN = "hide-code"
_LAST = 8


def slide_type(cell: NotebookNode) -> str:
    """`slide`, `-` or `skip`: what the cell's metadata says, else the rule."""
    given = cell.metadata.get("slideshow", {}).get("slide_type")
    if given:
        return "slide" if given == "subslide" else "-" if given == "fragment" else str(given)
    tags = set(cell.metadata.get("tags", []))
    if cell.cell_type == "markdown":
        if cell.source.startswith("<details") or "```{admonition}" in cell.source:
            return "skip"
        return "slide" if cell.source.startswith(("# ", "## ")) else "-"
    kinds = {kind for output in cell.get("outputs", []) for kind in output.get("data", {})}
    shown = [output for output in cell.get("outputs", []) if execute.PANEL not in _text(output)]
    if tags & _SKIPPED_TAGS or not (shown or "show-code" in tags):
        return "skip"
    return "slide" if kinds & {"text/html", "image/png"} else "-"


def _text(output: NotebookNode) -> str:
    return "".join(output.get("data", {}).get("text/html", ""))


def slides(notebook: NotebookNode) -> Iterator[list[NotebookNode]]:
    """The cells of each slide."""
    current: list[NotebookNode] = []
    for cell in notebook.cells:
        kind = slide_type(cell)
        if kind in ("skip", "notes"):
            continue
        if kind == "slide" and current:
            yield current
            current = []
        current.append(copy.deepcopy(cell))
        if cell.cell_type == "code" and "show-code" not in cell.metadata.get("tags", []):
            current[-1].metadata["tags"] = [_HIDDEN]
    if current:
        yield current


def page(notebook: NotebookNode, title: str) -> str:
    """The file."""
    exporter = HTMLExporter(template_name="basic")
    exporter.register_preprocessor(TagRemovePreprocessor(remove_input_tags={_HIDDEN}), enabled=True)
    bodies = []
    for cells in slides(notebook):
        part = nbformat.v4.new_notebook(metadata=notebook.metadata, cells=cells)
        bodies.append(_with_links(exporter.from_notebook_node(part)[0]))
    template = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True).get_template(
        "slides.jinja"
    )
    light, dark = (
        HtmlFormatter(style=style).get_style_defs(".highlight") for style in ("default", "github-dark")
    )
    return template.render(title=title, slides=bodies, light=light, dark=dark)


def _with_links(body: str) -> str:
    """Links to other chapters that have slides lead there; what is not beside the slides is plain text."""
    body = re.sub(r'href="(0[0-8]_\w+)\.ipynb"', r'href="\1.html"', body)
    return re.sub(r'<a href="(?!http|#|0[0-8]_)[^"]*">(.*?)</a>', r"\1", body, flags=re.DOTALL)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m docs.book.slides", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--recording", default="cpu-quick", choices=list(recordings.available()))
    parser.add_argument("--only", help="01,02: some chapters")
    parser.add_argument("--folder", type=Path, default=execute.ROOT / "build" / "slides")
    given = parser.parse_args()
    only = given.only.split(",") if given.only else [f"{number:02}" for number in range(_LAST + 1)]
    given.folder.mkdir(parents=True, exist_ok=True)
    book = given.folder.parent / "book"
    for source in [source for source in execute.chapters() if source.stem[:2] in only]:
        try:
            notebook = execute.executed(source, book / "data", given.recording, book / "executed")
        except execute.Failed as problem:
            print(problem, file=sys.stderr)
            return 1
        target = given.folder / f"{source.stem}.html"
        target.write_text(page(notebook, source.stem.replace("_", " ")), encoding="utf-8")
        print(f"wrote {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
