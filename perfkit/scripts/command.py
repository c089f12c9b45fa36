"""The command that watches a script as it stands."""

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from perfkit.cli import options as cli
from perfkit.scripts import tables
from perfkit.scripts.launch import Launch
from perfkit.scripts.watched import ScriptFailed
from perfkit.scripts.watching import BUDGET_S, TRY_S
from perfkit.scripts.watching import watch as watch_script

Program = Annotated[str, typer.Argument(help="train.py, or an installed command", metavar="SCRIPT")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(help="its own arguments, after --", metavar="[-- ARGS]", show_default=False),
]
Module = Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python -m")]


@contextlib.contextmanager
def showing_failures() -> Iterator[None]:
    """Shows what a script that fails wrote itself."""
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
    steps: Annotated[
        int | None, typer.Option(min=1, max=100_000, help="plain steps to time, at most (default: 60)")
    ] = None,
    budget: Annotated[
        float, typer.Option(min=1, help="seconds that it may take once the script trains")
    ] = BUDGET_S,
    tries: Annotated[
        bool, typer.Option("--try", help="also measure the two best suggestions, about 30 s each")
    ] = False,
    timeout: Annotated[float, typer.Option(min=0.1, help="minutes that it may take in all")] = 30.0,
) -> None:
    """Runs your training script as it is, and says where its steps' time goes and what to try."""
    launch = Launch(program, tuple(arguments or ()), module)
    typer.echo(f"{launch.describe()}: about {budget + 2 * TRY_S * tries:.0f} s once it trains", err=True)
    with showing_failures(), cli.progress() as follow:
        result = watch_script(launch, steps, follow, budget, 60 * timeout, tries)
    output.show(program, tables.watched(result), result)
