"""Commands that look inside a training step: profile, memory, kernels, waits, Nsight Systems, any trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from perfkit import trace as traces
from perfkit.cli import app as cli
from perfkit.errors import one_of
from perfkit.show import tables_inside, terminal
from perfkit.studies import inspect
from perfkit.trace import report

_RECORDED = ("shapes", "memory", "stacks")


@cli.command(cli.INSIDE)
def profile(
    training: cli.Stage,
    page: cli.Page,
    steps: Annotated[int, typer.Option(min=1, max=100, help="to record")] = 3,
    record: Annotated[
        str, typer.Option(help="any of shapes,memory,stacks (Python frames: slow)")
    ] = "shapes,memory",
    out: Annotated[Path | None, typer.Option(help="the trace: FILE.json or FILE.json.gz")] = None,
) -> None:
    """Profiles some steps of a recipe in a process of its own, and says where the time went."""
    cli.check_writable(out)
    choices = cli.names(record) or []
    if unknown := set(choices) - set(_RECORDED):
        raise one_of(unknown.pop(), list(_RECORDED), "thing to record")
    how = inspect.ProfilerOptions(active=steps, **{name: name in choices for name in _RECORDED})
    result = inspect.profile(profiler=how, out=out, **training.where())
    analysis, findings = result.analysis, result.findings
    window = result.lanes() if analysis.steps else None
    sections = report.sections(analysis, findings, window, result.loading)
    document = analysis.to_dict(findings) | {"loading": msgspec.to_builtins(result.loading)}
    page.show_page("perfkit profile", [*sections, result.describe()], document)


@cli.command(cli.INSIDE)
def memory(
    training: cli.Stage,
    output: cli.Output,
    other: Annotated[
        cli.Texts, typer.Option("--than", help="switch=value of a second recipe to compare with")
    ] = None,
) -> None:
    """What holds memory in a training step: by kind, by phase, by line of code."""
    second = dataclasses.replace(training, settings=[*(training.settings or []), *(other or [])])
    ledgers = [inspect.memory(**one.where()) for one in ([training, second] if other else [training])]
    output.show(tables_inside.memory(ledgers), ledgers if other else ledgers[0])


@cli.command(cli.INSIDE)
def kernels(training: cli.Stage, output: cli.Output) -> None:
    """What the device can do by shape and type, how much of it a step uses, and badly aligned layers."""
    result = inspect.kernels(**training.where())
    output.show(tables_inside.kernels(result), result)


@cli.command(cli.INSIDE)
def syncs(
    training: cli.Stage, steps: Annotated[int, typer.Option(min=1, max=1000, help="to watch")] = 4
) -> None:
    """Lists every copy and wait between host and device in a training step, with its line and a remedy."""
    terminal.show(tables_inside.syncs(inspect.syncs(steps=steps, **training.where())))


@cli.command(cli.INSIDE)
def trace(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE…", help="*.pt.trace.json[.gz], one for each rank")
    ],
    page: cli.Page,
) -> None:
    """Reads a PyTorch profiler trace and says where the time went."""
    loaded = traces.load(files)
    analysis = traces.analyse(loaded)
    findings = traces.diagnose(analysis)
    window = traces.lanes(loaded) if analysis.steps else None
    title = f"perfkit trace: {', '.join(path.name for path in files)}"
    page.show_page(title, report.sections(analysis, findings, window), analysis.to_dict(findings))
