"""The commands that watch a script as it stands, and that edit it so that it has switches by itself."""

import contextlib
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from perfkit.cli import options as cli
from perfkit.errors import InvalidValue
from perfkit.recipe import parse_settings
from perfkit.scripts import patch as patching
from perfkit.scripts import tables
from perfkit.scripts.launch import Launch
from perfkit.scripts.watched import ScriptFailed
from perfkit.scripts.watching import BUDGET_S, TRY_S
from perfkit.scripts.watching import watch as watch_script
from perfkit.show import terminal
from perfkit.show.document import Content, Notice

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


def patch(
    program: Program,
    arguments: Arguments = None,
    *,
    module: Module = False,
    settings: Annotated[cli.Texts, typer.Option("--set", help="switch=value; repeatable")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="edit the files themselves, once that is verified")
    ] = False,
    verify: Annotated[
        bool, typer.Option(help="measure the edited script against the switches set from outside")
    ] = True,
    budget: Annotated[float, typer.Option(help="seconds of rounds to verify it", min=0)] = patching.BUDGET_S,
    preset: Annotated[str | None, typer.Option(help="smoke, quick or paper: how large blocks are")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write the result as JSON; - for stdout")
    ] = None,
) -> None:
    """Prints the edit of your own script that sets switches, at the calls seen while it trained."""
    cli.check_writable(json_file)
    switches = parse_settings(settings or [])
    if not switches:
        raise InvalidValue("there is nothing to set", "Add --set switch=value, such as --set amp=bf16")
    launch = Launch(program, tuple(arguments or ()), module)
    verification = None
    with showing_failures(), cli.progress() as show:
        result = patching.make(launch, switches, progress=show)
        if verify and result.edits:
            verification = patching.verify(result, launch, switches, budget, preset, progress=show)
    if json_file:
        document = {
            "schema": 1, "diff": result.diff(), "root": result.root, "edits": result.edits,
            "already": result.already, "refused": result.refused, "arguments": result.launch.arguments,
            "verification": verification,
        }  # fmt: skip
        cli.write(json_file, msgspec.json.format(msgspec.json.encode(document, enc_hook=str)))
    if str(json_file) != "-":
        sys.stdout.write(result.diff())
    terminal.show(list(_notes(result, launch, verification)), to_stderr=True)
    failed = verification is not None and not verification.ok
    if write and not failed:
        for path in patching.write(result):
            typer.echo(f"edited {path}", err=True)
    if failed or (result.refused and not result.edits):
        raise typer.Exit(1)


def _notes(
    result: patching.Patch, launch: Launch, verification: patching.Verification | None
) -> Iterator[Content]:
    """What a reader must know beside the diff."""
    if result.changes and result.root != launch.where.resolve():
        yield f"Apply it with: patch -p1 -d {shlex.quote(str(result.root))}"
    if result.launch.arguments != launch.arguments:
        arguments = tuple(map(shlex.quote, result.launch.arguments))
        yield f"Start it with: {replace(launch, arguments=arguments).describe()}"
    if result.already:
        yield f"The script has {', '.join(result.already)} already."
    for name, why in result.refused.items():
        yield Notice(f"{name} needs an edit by hand: {why}")
    if verification:
        yield verification.describe() if verification.ok else Notice(verification.describe())
