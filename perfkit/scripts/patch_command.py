"""The command that edits a script so that it has switches by itself."""

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
from perfkit.scripts.command import Arguments, Module, Program, showing_failures
from perfkit.scripts.launch import Launch
from perfkit.show import terminal
from perfkit.show.document import Content, Notice


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
