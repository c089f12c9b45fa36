"""The command that watches a script as it stands."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from perfkit.cli import options as cli
from perfkit.errors import Cancelled, InvalidValue
from perfkit.scripts import tables as tables_script
from perfkit.scripts import watch_study as studies
from perfkit.scripts.launch import Launch
from perfkit.scripts.watched import ScriptFailed, WatchedScript

Program = Annotated[str, typer.Argument(help="train.py, or a command such as torchrun", metavar="SCRIPT")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(help="its own arguments, after --", metavar="[-- ARGS]", show_default=False),
]
Module = Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python -m")]
InPlace = Annotated[bool, typer.Option(help="let it write where it would, not into a scratch folder")]


@contextlib.contextmanager
def showing_failures() -> Iterator[None]:
    """Of a script that fails, what it wrote itself is shown first."""
    try:
        yield
    except ScriptFailed as failure:
        if failure.output:
            typer.echo(failure.output.rstrip(), err=True)
        raise


def watch(
    program: Program,
    output: cli.Output,
    arguments: Arguments = None,
    module: Module = False,
    steps: Annotated[int, typer.Option(min=6, max=100_000, help="plain steps to time")] = 60,
    run_on: Annotated[bool, typer.Option("--run-on", help="let it train on to its end afterwards")] = False,
    in_place: InPlace = False,
    out: Annotated[
        Path | None,
        typer.Option("-o", metavar="FILE", help="write the profile of some steps: FILE.json or .json.gz"),
    ] = None,
    show_output: Annotated[bool, typer.Option(help="show what the script prints")] = False,
    env: Annotated[cli.Texts, typer.Option(help="NAME=VALUE in its environment; repeatable")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="minutes that it may take in all")] = 30.0,
) -> None:
    """Runs your training script as it is, and says where its steps' time goes and what to try."""
    cli.check_writable(out)
    if out and not out.name.endswith((".json", ".json.gz")):
        raise InvalidValue(f"cannot write a trace to {out}", "Give a name that ends in .json or .json.gz")
    launch = Launch(program, tuple(arguments or ()), module)
    variables = dict(cli.pairs(env, "variable", "NAME=VALUE"))

    def started(script: WatchedScript) -> None:
        if run_on or show_output:
            script.on_output.append(sys.stderr)

    with showing_failures(), cli.progress() as show:
        result, running = studies.watch(
            launch, steps, run_on, in_place or run_on, out, timeout_s=60 * timeout, on_start=started,
            on_progress=show.share, environment=variables,
        )  # fmt: skip
    output.show(f"{program}", tables_script.watched(result), result)
    if running:
        finish(running)


def finish(script: WatchedScript) -> None:
    """Waits for the end of a script that runs on; its exit status is the command's."""
    typer.echo("perfkit: it runs on, unwatched; Ctrl-C ends it", err=True)
    try:
        status = script.wait()
    except (KeyboardInterrupt, Cancelled):
        script.stop()
        raise KeyboardInterrupt from None
    script.stop()
    raise typer.Exit(status)
