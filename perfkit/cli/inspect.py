"""`perfkit memory`, `kernels`, `nsys` and `torchrun`: what a step is made of, and where else to run it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from perfkit.cli import app as cli

Stage = Annotated[str | None, typer.Option(help="the recipe of this rung (default: the baseline)")]
Json = Annotated[Path | None, typer.Option("--json", help="write the result there, - for stdout")]


@cli.app.command()
def memory(
    stage: Stage = None,
    workload: cli.Workload = None,
    preset: cli.PresetName = None,
    settings: cli.Settings = None,
    option: cli.Options = None,
    device: cli.Device = None,
    other: Annotated[
        list[str] | None, typer.Option("--than", help="switch=value of a second recipe to compare with")
    ] = None,
    json_file: Json = None,
) -> None:
    """What holds memory in a training step: by kind, by phase, by line of code."""
    from perfkit.show import inside
    from perfkit.studies import inspect

    with cli._errors_in_words():
        cli._check_writable(json_file)
        own = settings or []
        recipes = [own, [*own, *other]] if other else [own]
        found = [
            inspect.memory(workload, stage, **cli._where(preset, changed, option, device))
            for changed in recipes
        ]
        _tell(inside.memory(found), json_file, found if other else found[0])


@cli.app.command()
def kernels(
    stage: Stage = None,
    workload: cli.Workload = None,
    preset: cli.PresetName = None,
    settings: cli.Settings = None,
    option: cli.Options = None,
    device: cli.Device = None,
    json_file: Json = None,
) -> None:
    """What the device can do by shape and type, how much of it a step uses, and layers with unlucky sizes."""
    from perfkit.show import inside
    from perfkit.studies import inspect

    with cli._errors_in_words():
        cli._check_writable(json_file)
        found = inspect.kernels(workload, stage, **cli._where(preset, settings, option, device))
        _tell(inside.kernels(found), json_file, found)


@cli.app.command()
def nsys(
    stage: Stage = None,
    workload: cli.Workload = None,
    preset: cli.PresetName = None,
    settings: cli.Settings = None,
    option: cli.Options = None,
    device: cli.Device = None,
    out: Annotated[Path, typer.Option(help="the report, without its ending")] = Path("perfkit-nsys"),
    read: Annotated[
        Path | None, typer.Option(help="only read this SQLite export: writes FILE.json.gz for perfkit trace")
    ] = None,
) -> None:
    """Profiles a recipe with Nsight Systems, and makes its export readable by `perfkit trace`."""
    from perfkit.process import nsys as tool
    from perfkit.studies import inspect

    with cli._errors_in_words():
        if read is None:
            where = cli._where(preset, settings, option, device)
            asked = inspect.nsys(workload, stage, out, **where)
            typer.echo(shlex.join(asked))
            read = tool.record(asked, out)
        made = tool.convert(read, read.with_suffix(".json.gz"))
        typer.echo(f"read it with: perfkit trace {made}")


@cli.app.command()
def torchrun(
    ranks: Annotated[int, typer.Option(min=2, help="processes, on all machines together")],
    nodes: Annotated[int, typer.Option(min=1, help="machines")] = 1,
    rendezvous: Annotated[str, typer.Option(help="HOST:PORT of one of them")] = "HOST:29400",
    script: Annotated[Path, typer.Option(help="an exported script: perfkit export --set ranks=…")] = Path(
        "train.py"
    ),
) -> None:
    """Prints the command that starts an exported script on a cluster."""
    from perfkit.studies import scaling

    with cli._errors_in_words():
        typer.echo(scaling.torchrun(str(script), ranks, nodes, rendezvous))


def _tell(
    said: list[tuple[str, list[str], list[list[str]]]], json_file: Path | None, document: object
) -> None:
    import json

    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(stderr=str(json_file) == "-", highlight=False)
    for title, columns, rows in said:
        table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*row)
        console.print(table, markup=False)
    if json_file:
        cli._write(json_file, json.dumps(document, indent=1))
