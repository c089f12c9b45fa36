"""The commands that watch a script as it stands, and that edit it so that it has switches by itself."""

import sys
from typing import Annotated

import typer

from perfkit.additions.scripts import patch as patching
from perfkit.additions.scripts import watching
from perfkit.additions.scripts.watched import Launch
from perfkit.cli import options as cli
from perfkit.recipe import parse_settings
from perfkit.show import terminal

Program = Annotated[str, typer.Argument(help="train.py", metavar="SCRIPT")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(help="its own arguments, after --", metavar="-- ARGS", show_default=False),
]
Module = Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python -m")]


def watch(
    program: Program,
    output: cli.Output,
    arguments: Arguments = None,
    module: Module = False,
    budget: Annotated[
        float, typer.Option(min=1, help="seconds that it may take once the script trains")
    ] = watching.BUDGET_S,
    tries: Annotated[
        bool, typer.Option("--try", help="also measure the two best suggestions, about 30 s each")
    ] = False,
) -> None:
    """Runs your training script as it is, and says where its steps' time goes and what to try."""
    launch = Launch(program, tuple(arguments or ()), module)
    seconds = budget + 2 * watching.TRY_S * tries
    typer.echo(f"{launch.describe()}: about {seconds:.0f} s once it trains", err=True)
    with cli.progress() as follow:
        result = watching.watch(launch, follow, budget, tries)
    output.show(program, result.sections(), result)


def patch(
    program: Program,
    arguments: Arguments = None,
    *,
    module: Module = False,
    settings: Annotated[list[str], typer.Option("--set", help="switch=value; repeatable")],
    budget: Annotated[
        float,
        typer.Option(help="seconds of rounds against the switches set from outside; 0: unverified", min=0),
    ] = 30.0,
) -> None:
    """Prints the edit of your own script that sets switches, at the calls seen while it trained."""
    switches = parse_settings(settings)
    launch = Launch(program, tuple(arguments or ()), module)
    with cli.progress() as follow:
        result = patching.make(launch, switches, follow)
        proof = patching.verify(result, launch, budget, follow)
    sys.stdout.write(result.diff())
    terminal.show([*result.notes(), proof.evidence], to_stderr=True)
    if not proof.ok:
        raise typer.Exit(1)
