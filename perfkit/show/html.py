"""Sections as HTML: a page that needs no network, or a fragment for a notebook."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

import jinja2

from perfkit.show import terminal
from perfkit.show.document import Content
from perfkit.show.units import clean


def page(title: str, contents: Iterable[Content]) -> str:
    """One HTML file that needs no network."""
    return _template().render(fragment=False, title=title, contents=list(contents))


def fragment(contents: Iterable[Content]) -> str:
    """A fragment of a notebook's page: figures are inline SVG in the page's own text colour."""
    return _template().render(fragment=True, contents=list(contents))


def mimebundle(contents: Sequence[Content]) -> dict[str, str]:
    """A notebook output: static HTML, which GitHub and nbconvert show too, and the same as plain text."""
    return {"text/html": fragment(contents), "text/plain": terminal.text(contents, figures=True)}


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    from markdown_it import MarkdownIt

    environment.filters |= {"clean": clean, "markdown": MarkdownIt("commonmark", {"html": False}).render}
    environment.tests["kind"] = lambda content, name: type(content).__name__ == name
    return environment.get_template("page.jinja")
