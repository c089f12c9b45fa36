"""The command line: a table of commands. A command's module is imported when the command is used.

A command is a function, and its parameters are its options: see `perfkit.cli.command`. Additions have their
own commands. Exit codes: 0 done, 1 failed, 2 misused, 130 stopped, 141 a pipe was closed.
"""

import io
import signal
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import perfkit
from perfkit import lookup, registry
from perfkit.cli.command import as_app
from perfkit.errors import one_of

COMMANDS = {
    "run": ("perfkit.cli.run:run", "Measure a ladder of optimizations, and keep those that help"),
    "runs": ("perfkit.cli.show:runs", "List the stored runs"),
    "show": ("perfkit.cli.show:show", "Show a run, a session or a recording; write its report"),
    "compare": ("perfkit.cli.compare:compare", "Is B faster than A?"),
    "export": ("perfkit.cli.export:export", "Write the standalone training script of a recipe"),
    "diff": ("perfkit.cli.export:diff", "What an optimization changes in the training script"),
} | registry.table("COMMANDS")
"""Name → (`module:attribute`, the line for `perfkit --help`)."""


class _LazyGroup(TyperGroup):
    """The LazyGroup of click's documentation: imports a command when it is used, not to list it."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            ctx.fail(str(one_of(cmd_name, list(COMMANDS), "command")))
        place, _ = COMMANDS[cmd_name]
        return typer.main.get_command(as_app(cmd_name, lookup.load(place)))

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # Typer's own imports each command
        with formatter.section("Commands (perfkit COMMAND --help lists the options of one)"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


app = typer.Typer(
    name="perfkit",
    cls=_LazyGroup,
    no_args_is_help=True,
    rich_markup_mode=None,  # importing rich takes longer than printing the list
    pretty_exceptions_enable=False,
    add_completion=False,
    help="A training script, a set of switches, and a measured, honest difference.",
)


def _say_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"perfkit {perfkit.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Show it and exit.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopping it is like Ctrl-C
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # not every terminal can print ×
