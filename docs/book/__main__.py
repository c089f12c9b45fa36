"""Builds the book: every chapter, executed on a recording, as pages that open without a server or a network.

python -m docs.book               # build/book/html/index.html and build/perfkit-book.zip
python -m docs.book --only 01,02  # executes some chapters; the others are shown without results
"""

import argparse
import os
import re
import shutil
import sys
from pathlib import Path

import jupytext
import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell
from sphinx.cmd.build import main as sphinx

from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.results import recordings

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "notebooks" / "src"
RECORDINGS = {"03": "sim-v100", "05": "sim-v100"}
"""The recording of chapters whose stage the default recording does not have."""
DEFAULT = "cpu-quick"
HIDDEN = {"tags": ["remove-cell"]}


def write_sources(folder: Path) -> dict[str, list[str]]:
    """Writes what Sphinx reads; returns the pages of each part of the contents."""
    for document in [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/*.svg"), *ROOT.glob("docs/teaching/*.md")]:
        target = folder / document.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(document, target)
    for name, card in OPTIMIZATIONS.items():
        target = folder / "cards" / f"{name}.md"
        target.parent.mkdir(exist_ok=True)
        target.write_text(f"# {card.title}\n\n*{card.question}*\n\n{card.prose}\n", encoding="utf-8")
    for source in SOURCES.rglob("*.py"):
        target = (folder / "notebooks" / source.relative_to(SOURCES)).with_suffix(".ipynb")
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(chapter(source), target)
    groups = {
        "Chapters": "notebooks/[0-9]*.ipynb",
        "Puzzles": "notebooks/puzzles/**/*.ipynb",
        "Optimizations": "cards/*.md",
        "Background": "docs/**/*.md",
    }
    return {
        title: sorted(str(page.relative_to(folder).with_suffix("")) for page in folder.glob(pattern))
        for title, pattern in groups.items()
    }


def chapter(source: Path) -> nbformat.NotebookNode:
    """A chapter whose panels play a recording, with a note that says so."""
    name = RECORDINGS.get(source.stem[:2], DEFAULT)
    note = (
        "```{admonition} The results on this page are not yours\n"
        f"Panels of the ladder play the recording *{name}*. {recordings.find(name).provenance.describe()}\n"
        "Everything else ran on the machine that built this page, at the preset `smoke`: too few rounds for "
        "a verdict.\n\nOpen the notebook to get results of your own.\n```"
    )
    play = f"from perfkit import notebook as _pk\n_pk.use('{recordings.PREFIX}{name}')"
    notebook = jupytext.read(source)
    notebook.cells[1:1] = [new_markdown_cell(note)]
    notebook.cells.insert(0, new_code_cell(play, metadata=HIDDEN))
    return notebook


def build(folder: Path, only: list[str] | None = None) -> Path:
    """Executes and renders the book; returns its first page.

    Args:
        folder: for everything; the site is in `html` below it.
        only: the first digits of the chapters to execute; all of them if None.

    Raises:
        SystemExit: a cell fails, or Sphinx warns.
    """
    source, site = folder / "source", folder / "html"
    shutil.rmtree(source, ignore_errors=True)
    shutil.rmtree(site, ignore_errors=True)
    parts = write_sources(source)
    text = (Path(__file__).parent / "index.md").read_text(encoding="utf-8")
    for title, pages in parts.items():
        text += "\n".join(["", "```{toctree}", ":maxdepth: 1", f":caption: {title}", *pages, "```", ""])
    (source / "index.md").write_text(text, encoding="utf-8")
    notebooks = [page for title in ("Chapters", "Puzzles") for page in parts[title]]
    skipped = [
        f"{page}.ipynb"
        for page in notebooks
        if "solution" in page or (only is not None and Path(page).name[:2] not in only)
    ]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    os.environ.update(PERFKIT_DATA=str(folder / "data"), PERFKIT_PRESET="smoke", PYTHONPATH=path)
    os.environ["BOOK_NOT_EXECUTED"] = ",".join(skipped)
    here = str(Path(__file__).parent)
    if status := sphinx(["-q", "-W", "--keep-going", "-c", here, str(source), str(site)]):
        raise SystemExit(status)
    for page in site.rglob("*.html"):
        page.write_text(_accessible(page.read_text(encoding="utf-8")), encoding="utf-8")
    return site / "index.html"


def _accessible(page: str) -> str:
    """What axe misses in the theme's pages: levels of headings, names of landmarks, code that scrolls."""
    for plain, better in {
        'role="heading"': 'role="heading" aria-level="2"',
        '<aside class="sidebar-drawer"': '<aside aria-label="Contents" class="sidebar-drawer"',
        '<aside class="toc-drawer': '<aside aria-label="On this page" class="toc-drawer',
        "<h4>": "<h3>",  # of a cell's output, below a heading of the chapter
        "</h4>": "</h3>",
        "<pre>": '<pre tabindex="0">',
        ' download=""': "",  # a page that a chapter links to opens
    }.items():
        page = page.replace(plain, better)
    hidden = r'\g<0><h1 class="visually-hidden">perfkit</h1>'
    return page if "<h1" in page else re.sub(r'<article role="main"[^>]*>', hidden, page, count=1)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m docs.book", description=__doc__)
    parser.add_argument("--only", help="01,02: execute some chapters; the others are shown without results")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "book")
    arguments = parser.parse_args()
    page = build(arguments.folder, arguments.only.split(",") if arguments.only else None)
    archive = shutil.make_archive(str(arguments.folder.parent / "perfkit-book"), "zip", page.parent)
    sys.stdout.write(f"wrote {page} and {archive}\n")


if __name__ == "__main__":
    main()
