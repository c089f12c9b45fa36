"""`perfkit trace`: reads a profile that someone made."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfkit.cli import app as cli

if TYPE_CHECKING:
    from perfkit.show.document import Content
    from perfkit.trace import Analysis


@cli.command(cli.INSIDE)
def trace(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="*.pt.trace.json[.gz], one for each rank")
    ],
    json_file: cli.Json = None,
    html: cli.Html = None,
    other: Annotated[
        Path | None, typer.Option("--compare", metavar="OTHER", help="what changed from FILE to this one")
    ] = None,
) -> None:
    """Reads a PyTorch profiler trace and says where the time went."""
    from perfkit import trace as traces
    from perfkit.show import figures_trace, tables_trace, terminal
    from perfkit.trace import diagnosis

    cli.check_writable(json_file, html)
    loaded = traces.load(files)
    analysis = traces.analyse(loaded)
    findings = diagnosis.diagnose(analysis)
    document = analysis.to_dict(findings)
    sections = tables_trace.sections(analysis, findings, figures_trace.first_step(loaded))
    if other:
        changes = traces.compare(analysis, traces.analyse(other))
        document["comparison"] = changes
        sections.append(tables_trace.comparison(changes))
    cli.write_json(json_file, document)
    write_page(html, analysis, sections)
    terminal.show(sections, to_stderr=str(json_file) == "-")


def write_page(path: Path | None, analysis: Analysis, sections: Iterable[Content]) -> None:
    """Writes the page of an analysis."""
    from perfkit.show import html

    if path:
        names = ", ".join(Path(name).name for name in analysis.files)
        cli.write(path, html.page(f"perfkit trace: {names}", sections))
