"""The command that edits a script so that it has switches."""

import sys
from typing import Annotated

import typer

from perfkit.additions.patch import edits
from perfkit.additions.scripts.command import Arguments, Module, Program, launcher
from perfkit.additions.scripts.watched import Launch
from perfkit.cli import options as cli
from perfkit.errors import InvalidValue
from perfkit.recipe import parse_settings
from perfkit.show import terminal


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
    """Prints the edit that sets switches in your script, at the calls seen while it trained."""
    if launcher(program):
        what = f"{program} starts other processes, and a script is edited at the calls of one"
        remedy = "Name the script itself, and let it train as a single rank, or measure it on all ranks"
        raise InvalidValue(what, f"{remedy}: perfkit referee --set {settings[0]} -- {program} … train.py")
    launch = Launch(program, tuple(arguments or ()), module)
    with cli.progress() as follow:
        result = edits.make(launch, parse_settings(settings), follow)
        proof = edits.verify(result, launch, budget, follow)
    sys.stdout.write(result.diff())
    terminal.show([*result.notes(), proof.evidence], to_stderr=True)
    if not proof.ok:
        raise typer.Exit(1)
