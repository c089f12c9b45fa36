"""The command that edits a script so that it has switches by itself."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from perfkit.cli import options as cli
from perfkit.errors import InvalidValue
from perfkit.recipe import parse_settings
from perfkit.scripts import patch_study as patching
from perfkit.scripts import tables as tables_script
from perfkit.scripts.command import Arguments, Module, Program, showing_failures
from perfkit.scripts.launch import Launch
from perfkit.scripts.verification import Verification
from perfkit.show import terminal

if TYPE_CHECKING:
    from perfkit.scripts.patch import Patch  # libcst takes long to load


def patch(
    program: Program,
    arguments: Arguments = None,
    *,
    module: Module = False,
    settings: Annotated[cli.Texts, typer.Option("--set", help="switch=value; repeatable")] = None,
    write: Annotated[
        bool, typer.Option("--write", help="edit the files themselves, once that is verified")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("-o", help="write the diff here (.diff, .patch), or the edited script")
    ] = None,
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
    cli.check_writable(out, json_file)
    switches = parse_settings(settings or [])
    if not switches:
        raise InvalidValue("there is nothing to set", "Add --set switch=value, such as --set amp=bf16")
    launch = Launch(program, tuple(arguments or ()), module)
    verification = None
    with showing_failures(), cli.progress() as show:
        result = patching.make(launch, switches, progress=show)
        changed = bool(result.changes) or result.arguments != list(launch.arguments)
        if verify and changed:
            verification = patching.verify(launch, result, switches, budget, preset=preset, progress=show)
    text = result.diff(launch.where)
    command = _command(launch, result)
    if json_file:
        cli.write(json_file, msgspec.json.format(msgspec.json.encode(_document(result, text, verification))))
    if str(json_file) != "-":
        sys.stdout.write(text)
    terminal.show(tables_script.patch(result, command, verification), to_stderr=True)
    if out:
        _write_out(out, result, text)
    failed = verification is not None and not verification.ok
    if write and result.changes and not failed:
        for path in patching.write(result):
            typer.echo(f"edited {path}", err=True)
    if failed or (result.refused and not changed):
        raise typer.Exit(1)


def _command(launch: Launch, result: Patch) -> str:
    """The new command line; empty if it stays."""
    if result.arguments == list(launch.arguments):
        return ""
    changed = replace(launch, arguments=tuple(map(shlex.quote, result.arguments)))
    return changed.describe()


def _document(result: Patch, diff: str, verification: Verification | None) -> dict[str, object]:
    return {
        "schema": 1, "diff": diff, "edits": result.edits, "already": result.already,
        "refused": result.refused, "notes": [], "arguments": result.arguments,
        "verification": verification,
    }  # fmt: skip


def _write_out(out: Path, result: Patch, diff: str) -> None:
    if out.suffix in (".diff", ".patch"):
        cli.write(out, diff)
    elif len(result.changes) == 1:
        cli.write(out, result.changes[0].after)
    else:
        raise InvalidValue(
            f"{len(result.changes)} files have edits, not one", "Give -o a name that ends in .diff"
        )
