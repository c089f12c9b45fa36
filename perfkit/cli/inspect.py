"""Commands that look inside a training step: profile, memory, kernels, copies and waits, Nsight Systems."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from perfkit.cli import app as cli
from perfkit.errors import one_of

_RECORDED = ("shapes", "memory", "stacks")


@cli.command(cli.INSIDE)
def profile(
    training: cli.Stage,
    steps: Annotated[int, typer.Option(min=1, max=100, help="to record")] = 3,
    record: Annotated[
        str, typer.Option(help="any of shapes,memory,stacks (Python frames: slow)")
    ] = "shapes,memory",
    out: Annotated[Path | None, typer.Option(help="the trace: FILE.json or FILE.json.gz")] = None,
    json_file: cli.Json = None,
    html: cli.Html = None,
) -> None:
    """Profiles some steps of a recipe in a process of its own, and says where the time went."""
    from perfkit.cli.trace import write_page
    from perfkit.show import tables_trace, terminal
    from perfkit.studies import inspect

    cli.check_writable(out, json_file, html)
    choices = cli.names(record) or []
    if unknown := set(choices) - set(_RECORDED):
        raise one_of(unknown.pop(), list(_RECORDED), "thing to record")
    how = inspect.Recording(active=steps, **{name: name in choices for name in _RECORDED})
    found = inspect.profile(training.workload, training.stage, how, out, **training.where())
    analysis, findings = found.analysis, found.findings
    loading = msgspec.to_builtins(found.loading)
    cli.write_json(json_file, analysis.to_dict(findings) | {"loading": loading})
    window = found.lanes() if analysis.steps else None
    sections = tables_trace.sections(analysis, findings, window, [tables_trace.loading(found.loading)])
    write_page(html, analysis, sections)
    terminal.show([*sections, found.describe()], to_stderr=str(json_file) == "-")


@cli.command(cli.INSIDE)
def memory(
    training: cli.Stage,
    other: Annotated[
        list[str] | None, typer.Option("--than", help="switch=value of a second recipe to compare with")
    ] = None,
    json_file: cli.Json = None,
) -> None:
    """What holds memory in a training step: by kind, by phase, by line of code."""
    from perfkit.show import tables_inside, terminal
    from perfkit.studies import inspect

    cli.check_writable(json_file)
    second = dataclasses.replace(training, settings=[*(training.settings or []), *(other or [])])
    ledgers = [
        inspect.memory(one.workload, one.stage, **one.where())
        for one in ([training, second] if other else [training])
    ]
    cli.write_json(json_file, ledgers if other else ledgers[0])
    terminal.show(tables_inside.memory(ledgers), to_stderr=str(json_file) == "-")


@cli.command(cli.INSIDE)
def kernels(training: cli.Stage, json_file: cli.Json = None) -> None:
    """What the device can do by shape and type, how much of it a step uses, and badly aligned layers."""
    from perfkit.show import tables_inside, terminal
    from perfkit.studies import inspect

    cli.check_writable(json_file)
    found = inspect.kernels(training.workload, training.stage, **training.where())
    cli.write_json(json_file, found)
    terminal.show(tables_inside.kernels(found), to_stderr=str(json_file) == "-")


@cli.command(cli.INSIDE)
def syncs(
    training: cli.Stage, steps: Annotated[int, typer.Option(min=1, max=1000, help="to watch")] = 4
) -> None:
    """Lists every copy and wait between host and device in a training step, with its line and a way out."""
    from perfkit.show import tables_inside, terminal
    from perfkit.studies import inspect

    found = inspect.syncs(training.workload, training.stage, steps, **training.where())
    terminal.show(tables_inside.syncs(found["places"], steps, found["device"]))


@cli.command(cli.INSIDE)
def nsys(
    training: cli.Stage,
    out: Annotated[Path, typer.Option(help="the report, without its ending")] = Path("perfkit-nsys"),
    read: Annotated[
        Path | None, typer.Option(help="only read this SQLite export: writes FILE.json.gz for perfkit trace")
    ] = None,
) -> None:
    """Profiles a recipe with Nsight Systems, and makes its export readable by `perfkit trace`."""
    from perfkit.process import nsys as tool
    from perfkit.studies import inspect

    if read is None:
        command = inspect.nsys(training.workload, training.stage, out, **training.where())
        typer.echo(shlex.join(command))
        read = tool.record(command, out)
    converted = tool.convert(read, read.with_suffix(".json.gz"))
    typer.echo(f"read it with: perfkit trace {converted}")
