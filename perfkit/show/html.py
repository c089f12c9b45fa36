"""Sections as HTML: a whole page that needs no network, or the fragment that a notebook shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from perfkit.results.run import Run
from perfkit.show import document, style, tables
from perfkit.show.sentences import clean
from perfkit.trace import timeline_page as timeline

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""In addition to escaping: a browser neither runs a script in this page nor fetches anything."""


def fragment(contents: Iterable[document.Content], large: bool = False) -> str:
    """A piece of a notebook's page: figures are inline SVG in the page's own ink.

    Args:
        contents: what to show; titled sections have a heading of the fourth level.
        large: large type in the figures, for a projector.
    """
    return _template(large).render(fragment=True, contents=list(contents))


def page(title: str, contents: Iterable[document.Content]) -> str:
    """One HTML file that needs no network and runs no script but the timeline's, if it has one."""
    contents = list(contents)
    moves = any(isinstance(content, document.Timeline) for content in document.walk(contents))
    policy = timeline.policy() if moves else _POLICY
    return _template().render(fragment=False, title=title, contents=contents, policy=policy)


def pipeline() -> str:
    """The picture of a loop's two queues, with knobs, for a notebook; `pipeline.html` is a page by itself."""
    text = Path(__file__).with_name("pipeline.html").read_text(encoding="utf-8")
    frames: Any = _template().environment.get_template("frame.jinja").module
    return str(frames.frame(text, "The pipeline of a training step", 640))


@cache
def _template(large: bool = False) -> jinja2.Template:
    loader = jinja2.FileSystemLoader([Path(__file__).parent, Path(__file__).parents[1] / "trace"])
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "clean": clean, "cell": _whole_interval, "svg": lambda figure: style.to_svg(figure.draw(large=large)),
    }  # fmt: skip
    environment.globals["of_timeline"] = timeline
    environment.policies["json.dumps_kwargs"] = {}  # the order of the parts counts
    environment.tests["kind"] = lambda content, name: type(content).__name__ == name
    return environment.get_template("page.jinja")


def _whole_interval(cell: str) -> Markup:
    """A line may end before an interval, not inside."""
    text = str(escape(clean(cell)))
    return Markup(re.sub(r"\([^()]*–[^()]*\)", r'<span class="whole">\g<0></span>', text))


def session(runs: Sequence[Run], scripts: Mapping[str, str] | None = None) -> str:
    """The report of a session, to send to a colleague or to keep; arguments as for `tables.sections`."""
    title = clean(runs[0].workload.rpartition(":")[2]) if runs else "nothing was measured"
    return page(f"perfkit: {title}", tables.sections(runs, scripts))


html = session
"""The name that `perfkit.html` has always had."""
