"""A session as one HTML file that needs no network: to send to a colleague, or to keep."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from perfkit.ladder.catalogue import OPTIMIZATIONS
from perfkit.results.run import Run
from perfkit.show import document, results, style, timeline, trace_tables, units
from perfkit.show import figures as views
from perfkit.show import sentences as words
from perfkit.show import tables as table
from perfkit.show import trace_figures as trace_views
from perfkit.trace import Analysis, Lanes

_STYLE = """
:root { color-scheme: light dark; --jp-content-font-color1: #1f2328; --paper: #fff; --line: #d0d7de;
  --soft: #f3f5f7; --link: #0550ae; }
@media (prefers-color-scheme: dark) { :root { --jp-content-font-color1: #e6e8eb; --paper: #16181c;
  --line: #3d444d; --soft: #212529; --link: #79b8ff; } }
body { margin: 0 auto; padding: 1.5rem; max-width: 80rem; background: var(--paper);
  color: var(--jp-content-font-color1); font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; margin: 0; } h2 { font-size: 1.3rem; margin: 2.2rem 0 .6rem; }
a { color: var(--link); } p, li { max-width: 75ch; overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .875rem; }
th, td { padding: .35rem .6rem; border-bottom: 1px solid var(--line); text-align: right;
  vertical-align: top; font-variant-numeric: tabular-nums; }
thead th { background: var(--soft); vertical-align: bottom; }
.words th, .words td, th:first-child, th:last-child, td:last-child { text-align: left; }
.whole { white-space: nowrap; }
td { min-width: 4rem; overflow-wrap: anywhere; } td:last-child { max-width: 20rem; }
figure { margin: 0 0 1.5rem; } summary { cursor: pointer; padding: .2rem 0; }
pre { background: var(--soft); border: 1px solid var(--line); padding: .8rem; overflow-x: auto;
  font: .8125rem/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
"""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""A second lock beside escaping: a browser neither runs a script in this page nor fetches anything."""


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


@cache
def _template(large: bool = False) -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters |= {
        "clean": words.clean,
        "cell": _whole_interval,
        "svg": lambda figure: style.to_svg(figure.draw(large=large)),
        "timeline": timeline.html,
        "frame": timeline.frame,
    }
    environment.tests["kind"] = lambda content, name: type(content).__name__ == name
    return environment.get_template("page.jinja")


def _whole_interval(cell: str) -> Markup:
    """A line may end before an interval, not inside."""
    text = str(Markup.escape(words.clean(cell)))
    return Markup(re.sub(r"\([^()]*–[^()]*\)", r'<span class="whole">\g<0></span>', text))


def html(
    runs: Sequence[Run],
    scripts: Mapping[str, str] | None = None,
    extra_sections: Sequence[tuple[str, str]] | None = None,
) -> str:
    """The report of a session.

    Args:
        runs: in the order of the ladder.
        scripts: stage → its training script.
        extra_sections: (heading, body): the heading is text, the body HTML in which the caller has escaped
            what comes from outside.
    """
    pictures = "".join(f"<figure>{style.to_svg(views.figure(name, runs))}</figure>" for name in views.VIEWS)
    sections = [
        ("The ladder", _scrolled(_table(table.COLUMNS, table.table(runs)), "results")),
        ("What each stage showed", _list(sentences(runs))),
        ("Pictures", pictures),
        *(extra_sections or []),
        ("Proof that the switches act", _evidence(runs)),
        ("Warnings and facts", _list(notes(runs)) or "<p>None.</p>"),
        ("Settings", _details("Every switch of every stage", _scrolled(_settings(runs), "switches"))),
        ("Scripts", "".join(_script(*pair) for pair in (scripts or {}).items())),
        ("Machine", _details("Everything that was recorded", _pre(_machine(runs)))),
    ]
    title = "perfkit: " + words.clean(runs[0].workload.rpartition(":")[2] if runs else "nothing was measured")
    return _page(title, _summary(runs), sections)


def trace_html(analysis: Analysis, window: Lanes | None, said: Sequence[trace_tables.Section]) -> str:
    """The page of a trace: the tables `said`, the pictures, and the timeline of `window` to zoom in."""
    pictures = "".join(
        f"<figure>{style.to_svg(made)}</figure>" for made in trace_views.figures(analysis, window)
    )
    sections = [
        (
            s.title,
            (_scrolled(_table(s.columns, s.rows, "words"), s.title) if s.rows else "") + _list([s.note]),
        )
        for s in said
    ]
    shown = [("Pictures", pictures), ("Timeline", timeline.html(window) if window else "")]
    files = ", ".join(name.replace("\\", "/").rpartition("/")[2] for name in analysis.files)
    where = f"<p>{_text(analysis.device['name'] or analysis.device['kind'])}</p>"
    first = [section for section in sections if section[0] in ("Health of the trace", "Diagnosis")]
    rest = [section for section in sections if section not in first]
    return _page(f"perfkit trace: {files}", where, [*first, *shown, *rest], timeline.policy())


def _page(title: str, summary: str, sections: Sequence[tuple[str, str]], policy: str = _POLICY) -> str:
    body = "".join(f"<section><h2>{_text(head)}</h2>{said}</section>" for head, said in sections if said)
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>"
        f"<body><header><h1>{_text(title)}</h1>{summary}</header><main>{body}</main></body></html>\n"
    )


def sentences(runs: Sequence[Run]) -> list[str]:
    """What each stage showed, in words computed from the results."""
    said = []
    for run in runs:
        rung = OPTIMIZATIONS.get(run.stage)
        previous = results.previous(run, runs)
        said.append(words.verdict_sentence(run, previous, rung.bottleneck if rung else "none"))
    return said


def _text(text: object) -> str:
    return escape(words.clean(text))


def _pre(text: str) -> str:
    return f'<pre tabindex="0">{escape(text)}</pre>'


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{_text(summary)}</summary>{body}</details>"


def _list(items: Iterable[str]) -> str:
    entries = "".join(f"<li>{_text(item)}</li>" for item in items if item)
    return f"<ul>{entries}</ul>" if entries else ""


def _scrolled(body: str, label: str) -> str:
    return f'<div class="wide" tabindex="0" role="region" aria-label="{_text(label)}">{body}</div>'


def _cell(text: str) -> str:
    """A line may end before an interval, not inside."""
    return "<td>" + re.sub(r"\([^()]*–[^()]*\)", r'<span class="whole">\g<0></span>', _text(text)) + "</td>"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    """The first cell of a row is its heading."""
    head = "".join(f'<th scope="col">{_text(column)}</th>' for column in columns)
    body = "".join(
        f'<tr><th scope="row">{_text(first)}</th>{"".join(map(_cell, rest))}</tr>' for first, *rest in rows
    )
    return f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _summary(runs: Sequence[Run]) -> str:
    """Machine and settings, each on a line."""
    if not runs:
        return "<p>Nothing was measured yet.</p>"
    from perfkit import machine

    first, last = runs[0], next((run for run in reversed(runs) if results.rate(run)), None)
    options = ", ".join(f"{name}={value}" for name, value in first.options.items())
    settings = [f"workload {first.workload}", options, f"preset {first.preset}", f"device {first.device}"]
    settings += [f"seed {first.seed}", f"session {first.session}", first.created]
    lines = [machine.describe(first.machine), " · ".join(filter(None, settings))]
    overall = results.speedup(last, "baseline") if last else None
    if last and overall:
        said = f"{units.ratio(overall)} {overall.verdict}"
        lines.append(f"{words.name(last)}, the last stage measured, against the baseline: {said}.")
    return "".join(f"<p>{_text(line)}</p>" for line in lines)


def _evidence(runs: Sequence[Run]) -> str:
    rows = [
        (words.name(run), m.switch, "on as set" if m.ok else "NOT as set", m.evidence)
        for run in runs
        for m in run.mechanism
    ]
    off = [row for row in rows if row[2] != "on as set"]
    columns = ("stage", "switch", "state", "evidence")
    told = f"{len(rows) - len(off)} of {len(rows)} checks found the switch as the recipe sets it."
    alarm = _table(columns, off, "words off") if off else ""
    every = _details("Every check", _scrolled(_table(columns, rows, "words"), "checks"))
    return f"<p>{told}</p>{alarm}{every}" if rows else ""


def notes(runs: Sequence[Run]) -> list[str]:
    """Warnings, then facts, each once with the stages that it is about."""
    found: dict[str, list[str]] = {}
    for run in runs:
        for text in [*run.warnings, *(f"{name}: {fact}" for name, fact in run.facts.items())]:
            found.setdefault(text, []).append(words.name(run))
    whole = sum(run.status == "ok" for run in runs)
    return [
        f"{'every measured stage' if len(names) == whole > 1 else ', '.join(names)}: {text}"
        for text, names in found.items()
    ]


def _settings(runs: Sequence[Run]) -> str:
    names = list(dict.fromkeys(name for run in runs for name in run.recipe))
    rows = [[name, *(str(run.recipe.get(name, "")) for run in runs)] for name in names]
    return _table(["switch", *map(words.name, runs)], rows)


def _script(stage: str, source: str) -> str:
    return _details(stage, _pre(source))


def _machine(runs: Sequence[Run]) -> str:
    machine: dict[str, Any] = runs[0].machine if runs else {}
    return json.dumps(machine, indent=1, ensure_ascii=False, default=str)
