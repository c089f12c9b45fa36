"""Builds the book: the chapters with their saved outputs, as pages that open without a server or a network.

`python -m docs.book [FOLDER]` writes FOLDER/html/index.html, and perfkit-book.zip beside the folder.
"""

import re
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

from docs import climb
from perfkit.additions import pages as framed
from perfkit.ladder.catalogue import OPTIMIZATIONS

ROOT = Path(__file__).parents[2]
LIVE = {"Climb it yourself": ("climb.html", 960), "The pipeline of a training step": ("pipeline.html", 640)}
"""Pages that need no kernel, by the titles of their pictures in chapters: file, and height of the frame."""


def write_sources(folder: Path) -> dict[str, list[str]]:
    """Writes what Sphinx reads; returns the pages of each part of the contents."""
    texts = ("docs/*.md", "docs/teaching/*.md", "notebooks/*.ipynb", "notebooks/puzzles/*.ipynb")
    for pattern in (*texts, "docs/images/panel.png"):
        for document in ROOT.glob(pattern):
            target = folder / document.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(document, target)
    for name, card in OPTIMIZATIONS.items():
        target = folder / "cards" / f"{name}.md"
        target.parent.mkdir(exist_ok=True)
        target.write_text(f"# {card.title}\n\n*{card.question}*\n\n{card.card()}\n", encoding="utf-8")
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


def build(folder: Path) -> Path:
    """Renders the book into `html` in a folder; returns its first page. Exits if Sphinx warns."""
    source, site = folder / "source", folder / "html"
    shutil.rmtree(source, ignore_errors=True)
    shutil.rmtree(site, ignore_errors=True)
    parts = write_sources(source)
    text = (Path(__file__).parent / "index.md").read_text(encoding="utf-8")
    for title, pages in parts.items():
        text += "\n".join(["", "```{toctree}", ":maxdepth: 1", f":caption: {title}", *pages, "```", ""])
    (source / "index.md").write_text(text, encoding="utf-8")
    here = str(Path(__file__).parent)
    if status := sphinx(["-q", "-W", "--keep-going", "-c", here, str(source), str(site)]):
        raise SystemExit(status)
    for page in site.rglob("*.html"):
        text = _accessible(page.read_text(encoding="utf-8"))
        page.write_text(_alive(text, "../" * len(page.relative_to(site).parents[1:])), encoding="utf-8")
    (site / "climb.html").write_text(climb.current("notebooks/00_start_here.html"), encoding="utf-8")
    shutil.copy(Path(framed.__file__).with_name("pipeline.html"), site)
    return site / "index.html"


def _alive(page: str, top: str) -> str:
    """The page itself in a frame, in the place of its picture in a chapter's saved output."""
    for title, (file, height) in LIVE.items():
        frame = f'<iframe class="live" src="{top}{file}" title="{title}" height="{height}"></iframe>'
        page = re.sub(rf'<img\b[^>]*\balt="{title}"[^>]*>', frame, page)
    return page


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


if __name__ == "__main__":
    place = Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "book"
    page = build(place)
    archive = shutil.make_archive(str(place.parent / "perfkit-book"), "zip", page.parent)
    sys.stdout.write(f"wrote {page} and {archive}\n")
