"""Builds the book: every chapter, executed on a recording, as pages that open without a server or a network.

make book                              # build/book/html/index.html and build/perfkit-book.zip
make book ARGS="--recording sim-v100"  # the panels of the ladder play another recording
make book ARGS="--only 01,02"          # some chapters
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from sphinx.application import Sphinx

from docs.book import execute, links
from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.results import recordings

ROOT = execute.ROOT
_MEASURING = "09"
"""Chapters before this one play a recording, so several can be executed at a time."""


def build(folder: Path, recording: str = "cpu-quick", only: list[str] | None = None) -> Path:
    """Executes the chapters and renders them.

    Args:
        folder: of everything; `html` in it is the site, which is made again from nothing.
        recording: that the panels play.
        only: the first two digits of the chapters to execute; the others are shown without results.

    Returns:
        The first page.

    Raises:
        Failed: a cell fails, a page has a problem, or a link leads nowhere.
    """
    pages = [*execute.chapters(), *execute.puzzles()]
    chosen = [
        path for path in pages
        if path.parent.name != "solutions" and (only is None or path.stem[:2] in only)
    ]  # fmt: skip
    source, site = folder / "source", folder / "html"
    for old in (source, site):
        shutil.rmtree(old, ignore_errors=True)

    def chapter(path: Path) -> None:
        started = time.monotonic()
        target = source / "notebooks" / f"{execute.name(path)}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        if path not in chosen:
            nbformat.write(execute.plain(path), target)
            return
        nbformat.write(execute.executed(path, folder / "data", recording, folder / "executed"), target)
        print(f"{execute.name(path)}: {time.monotonic() - started:.0f} s", flush=True)

    played = [path for path in pages if path.stem[:2] < _MEASURING and path.parent == execute.SOURCES]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(chapter, played))
    for path in [path for path in pages if path not in played]:  # these measure: one at a time
        chapter(path)
    _documents(source)
    _render(source, site, folder / "doctrees")
    wrong = links.problems(site)
    if wrong:
        raise execute.Failed("\n".join(["the site has links that lead nowhere:", *wrong]))
    return site / "index.html"


def _documents(source: Path) -> None:
    """The pages beside the chapters: documents of the repository as they are, and the cards."""
    files = [*ROOT.glob("docs/*.md"), *ROOT.glob("docs/*.svg"), *ROOT.glob("docs/teaching/*.md")]
    documents = sorted(str(path.relative_to(ROOT)) for path in files)
    for name in documents:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8")
        (source / name).write_text(_with_links(text, name, source), encoding="utf-8")
    for chapter in [*execute.chapters(), *execute.puzzles()]:  # and files that they link to
        folder = Path("notebooks", execute.name(chapter)).parent
        for link in re.findall(r"\]\((\.\./[\w./]+)\)", chapter.read_text(encoding="utf-8")):
            file = (ROOT / folder / link).resolve()
            if file.is_file() and file.suffix not in (".md", ".ipynb"):
                target = source / file.relative_to(ROOT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, target)
    (source / "cards").mkdir()
    for name, card in OPTIMIZATIONS.items():
        text = f"# {card.title}\n\n*{card.question}*\n\n{card.prose}\n"
        (source / "cards" / f"{name}.md").write_text(text, encoding="utf-8")
    pages = [name.removesuffix(".md") for name in documents if name.endswith(".md")]
    parts = {
        "Chapters": [f"notebooks/{execute.name(path)}" for path in execute.chapters()],
        "Puzzles": [f"notebooks/{execute.name(path)}" for path in execute.puzzles()],
        "Optimizations": [f"cards/{name}" for name in OPTIMIZATIONS],
        "Background": pages,
    }
    trees = "".join(
        "\n".join(["```{toctree}", ":maxdepth: 1", f":caption: {title}", *names, "```", ""])
        for title, names in parts.items()
    )
    text = (Path(__file__).parent / "index.md").read_text(encoding="utf-8")
    (source / "index.md").write_text(f"{text}\n{trees}", encoding="utf-8")


def _with_links(text: str, name: str, source: Path) -> str:
    """A document whose links to files that the book lacks are plain text."""

    def kept(match: re.Match[str]) -> str:
        label, target = match.groups()
        place = (Path(name).parent / target.partition("#")[0]).as_posix()
        inside = (
            target.startswith(("http", "#"))
            or (source / place).exists()
            or (ROOT / place).suffix in (".md", ".svg")
        )
        return match.group(0) if inside else label

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)]+)\)", kept, text)


def _render(source: Path, site: Path, doctrees: Path) -> None:
    """The site; a warning is a failure."""
    here = str(Path(__file__).parent)
    app = Sphinx(
        str(source), here, str(site), str(doctrees), "html", status=None, warningiserror=True,
        exception_on_warning=False,
    )  # fmt: skip
    app.build(force_all=True)
    if app.statuscode:
        raise execute.Failed("Sphinx has warnings, above")
    for path in site.rglob("*.html"):
        path.write_text(_accessible(path.read_text(encoding="utf-8")), encoding="utf-8")


def _accessible(page: str) -> str:
    """What axe misses in the theme's pages: levels of headings, names of landmarks, code that scrolls."""
    for plain, better in {
        'role="heading"': 'role="heading" aria-level="2"',
        '<aside class="sidebar-drawer"': '<aside aria-label="Contents" class="sidebar-drawer"',
        '<aside class="toc-drawer': '<aside aria-label="On this page" class="toc-drawer',
        "<pre>": '<pre tabindex="0">',
        ' download=""': "",  # a page that a chapter links to opens
    }.items():
        page = page.replace(plain, better)
    hidden = r'\g<0><h1 class="visually-hidden">perfkit</h1>'
    return page if "<h1" in page else re.sub(r'<article role="main"[^>]*>', hidden, page, count=1)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m docs.book", description=__doc__.splitlines()[0])
    parser.add_argument("--recording", default="cpu-quick", choices=list(recordings.available()))
    parser.add_argument("--only", help="01,02: execute some chapters; the others are shown without results")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "book")
    arguments = parser.parse_args()
    only = arguments.only.split(",") if arguments.only else None
    try:
        page = build(arguments.folder, arguments.recording, only)
    except execute.Failed as problem:
        print(problem, file=sys.stderr)
        return 1
    archive = shutil.make_archive(str(arguments.folder.parent / "perfkit-book"), "zip", page.parent)
    print(f"wrote {page} and {archive} ({Path(archive).stat().st_size / 1e6:.0f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
