"""`perfkit trace` and `perfkit profile`: reading a profile, and making one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfkit.cli import app as cli

if TYPE_CHECKING:
    from perfkit.show.trace_tables import Section
    from perfkit.trace import Analysis, Lanes

Json = Annotated[Path | None, typer.Option("--json", help="write the analysis there, - for stdout")]
Html = Annotated[Path | None, typer.Option("--html", help="write one self-contained page there")]


@cli.app.command()
def trace(
    files: Annotated[list[Path], typer.Argument(metavar="FILE…", help="*.pt.trace.json[.gz], one a rank")],
    json_file: Json = None,
    html: Html = None,
    other: Annotated[
        Path | None, typer.Option("--compare", metavar="OTHER", help="what changed from FILE to this one")
    ] = None,
) -> None:
    """Reads a PyTorch profiler trace and says where the time went."""
    from perfkit import trace as traces
    from perfkit.show import trace_figures as trace_views
    from perfkit.show import trace_tables
    from perfkit.trace import diagnosis

    with cli._errors_in_words():
        for path in (json_file, html):
            cli._check_writable(path)
        loaded = traces.load(files)
        analysis = traces.analyse(loaded)
        findings = diagnosis.diagnose(analysis)
        document = analysis.to_dict(findings)
        said = trace_tables.sections(analysis, findings)
        if other:
            changes = traces.compare(analysis, traces.analyse(other))
            document["comparison"] = changes
            said += trace_tables.comparison(changes)
        _show(analysis, said, str(json_file) == "-")
        _write(analysis, trace_views.first_step(loaded), document, said, json_file, html)


@cli.app.command()
def profile(
    stage: Annotated[str | None, typer.Option(help="the recipe of this rung (default: the baseline)")] = None,
    workload: cli.Workload = None,
    preset: cli.PresetName = None,
    settings: cli.Settings = None,
    option: cli.Options = None,
    device: cli.Device = None,
    steps: Annotated[int, typer.Option(min=1, max=100, help="that are recorded")] = 3,
    record: Annotated[
        str, typer.Option(help="any of shapes,memory,stacks (Python frames: slow)")
    ] = "shapes,memory",
    out: Annotated[Path | None, typer.Option(help="the trace: FILE.json or FILE.json.gz")] = None,
    json_file: Json = None,
    html: Html = None,
) -> None:
    """Profiles some steps of a recipe in a process of their own, and says where the time went."""
    import msgspec

    from perfkit.errors import one_of
    from perfkit.show import trace_tables
    from perfkit.studies import inspect

    with cli._errors_in_words():
        for path in (out, json_file, html):
            cli._check_writable(path)
        choices = [name.strip() for name in record.split(",") if name.strip()]
        if unknown := set(choices) - {"shapes", "memory", "stacks"}:
            raise one_of(unknown.pop(), ["shapes", "memory", "stacks"], "thing to record")
        how = inspect.Recording(
            active=steps, **{name: name in choices for name in ("shapes", "memory", "stacks")}
        )
        where = cli._where(preset, settings, option, device)
        made = inspect.profile(workload, stage, how, out, **where)
        said = [*trace_tables.sections(made.analysis, made.findings), trace_tables.loading(made.loading)]
        document = made.analysis.to_dict(made.findings) | {"loading": msgspec.to_builtins(made.loading)}
        window = made.lanes() if made.analysis.steps else None
        _show(made.analysis, said, str(json_file) == "-")
        typer.echo(made.describe(), err=str(json_file) == "-")
        _write(made.analysis, window, document, said, json_file, html)


@cli.app.command()
def syncs(
    stage: Annotated[str | None, typer.Option(help="the recipe of this rung (default: the baseline)")] = None,
    workload: cli.Workload = None,
    preset: cli.PresetName = None,
    settings: cli.Settings = None,
    option: cli.Options = None,
    device: cli.Device = None,
    steps: Annotated[int, typer.Option(min=1, max=1000, help="that are watched")] = 4,
) -> None:
    """Lists every copy and wait between host and device in a training step, with its line and a way out."""
    from perfkit.studies import inspect

    with cli._errors_in_words():
        where = cli._where(preset, settings, option, device)
        found = inspect.syncs(workload, stage, steps, **where)
        typer.echo(found["table"])
        if found["device"] == "cpu":
            typer.echo("This run is on the CPU: these are the places that would wait for a GPU.")


def _show(analysis: Analysis, said: Sequence[Section], to_stderr: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from perfkit.show import sentences

    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal:
        console.width = 120
    where = analysis.device["name"] or analysis.device["kind"]
    console.print(sentences.clean(f"{', '.join(analysis.files)} · {where}"), markup=False, soft_wrap=True)
    for section in said:
        if not section.rows:
            console.print(f"{section.title}: {section.note}", markup=False)
            continue
        table = Table(
            title=section.title, title_justify="left", caption=section.note, caption_justify="left",
            box=box.SIMPLE_HEAD, pad_edge=False,
        )  # fmt: skip
        short = len(section.columns) > 5  # a line a row, what does not fit is cut off
        for column, cells in zip(section.columns, zip(*section.rows, strict=True), strict=True):
            narrow = max(map(len, cells)) <= 9
            table.add_column(
                column.replace(" ", "\n") if narrow else column, no_wrap=narrow, min_width=0 if narrow else 12
            )
        for row in section.rows:
            table.add_row(
                *(Text(cell, no_wrap=short, overflow="ellipsis" if short else "fold") for cell in row)
            )
        console.print(table)


def _write(
    analysis: Analysis, window: Lanes | None, document: dict[str, Any], said: Sequence[Section],
    json_file: Path | None, html: Path | None,
) -> None:  # fmt: skip
    import msgspec

    if json_file:
        cli._write(json_file, msgspec.json.format(msgspec.json.encode(document)).decode())
    if html:
        from perfkit.show import html as report

        cli._write(html, report.trace_html(analysis, window, said))
