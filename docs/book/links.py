"""Checks a built site: every link leads somewhere in it, and no page fetches anything from a network."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_FETCHES = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}


class _Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.ids |= {str(given[key]) for key in ("id", "name") if given.get(key)}
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag in _FETCHES and given.get(_FETCHES[tag]):
            self.fetched.append(str(given[_FETCHES[tag]]))


def problems(site: Path) -> list[str]:
    """Every link or fetch that would fail for a reader without a network."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    wrong = []
    for path, page in pages.items():
        here = path.relative_to(site)
        wrong += [f"{here}: fetches {url}" for url in page.fetched if _outside(url)]
        for url in [*page.links, *page.fetched]:
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.exists():
                wrong.append(f"{here}: no file for {url}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
                wrong.append(f"{here}: no place for {url}")
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        if "url(http" in text or "url(//" in text or "@import" in text:
            wrong.append(f"{sheet.relative_to(site)}: fetches from a network")
    return wrong


def _outside(url: str) -> bool:
    return url.startswith("//") or urlsplit(url).scheme in ("http", "https")
