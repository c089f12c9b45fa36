"""`perfkit trace`: reads a profile that someone made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfkit import trace as traces
from perfkit.cli import app as cli
from perfkit.show import figures_trace, tables_trace
from perfkit.trace import diagnosis


@cli.command(cli.INSIDE)
def trace(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="*.pt.trace.json[.gz], one for each rank")
    ],
    page: cli.Page,
    other: Annotated[
        Path | None, typer.Option("--compare", metavar="OTHER", help="what changed from FILE to this one")
    ] = None,
) -> None:
    """Reads a PyTorch profiler trace and says where the time went."""
    loaded = traces.load(files)
    analysis = traces.analyse(loaded)
    findings = diagnosis.diagnose(analysis)
    document = analysis.to_dict(findings)
    sections = tables_trace.sections(analysis, findings, figures_trace.first_step(loaded))
    if other:
        changes = traces.compare(analysis, traces.analyse(other))
        document["comparison"] = changes
        sections.append(tables_trace.comparison(changes))
    page.show_page(f"perfkit trace: {', '.join(path.name for path in files)}", sections, document)
