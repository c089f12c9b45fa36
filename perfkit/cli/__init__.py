"""The command line: a table of commands. A command's module is imported when the command is used.

Additions bring commands of their own; see `perfkit.additions`.
"""

import signal
from typing import Any

import typer
from typer.core import TyperGroup

from perfkit import additions

COMMANDS = {
    "run": ("perfkit.cli.run:run", "Measure a ladder of optimizations, each against the one before"),
    "runs": ("perfkit.cli.run:runs", "List the stored runs"),
    "show": ("perfkit.cli.run:show", "Show a run, a session or a recording; write its report"),
    "compare": ("perfkit.cli.compare:compare", "Is B faster than A?"),
    "parity": ("perfkit.cli.compare:parity", "Does a recipe train the same as the baseline?"),
    "memory": ("perfkit.cli.compare:memory", "What holds memory in a training step"),
    "export": ("perfkit.cli.run:export", "Write the standalone training script of a recipe"),
    "diff": ("perfkit.cli.run:diff", "What an optimization changes in the training script"),
    "doctor": ("perfkit.cli.doctor:doctor", "Check this machine: what can run, what to fix, its noise"),
}  # fmt: skip
"""Name → (`module:attribute`, the line for `perfkit --help`)."""


class _Commands(TyperGroup):
    """A group that knows its commands by name and imports one when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS | additions.commands())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from perfkit.cli.command import single

        place = (COMMANDS | additions.commands()).get(cmd_name)
        return typer.main.get_command(single(cmd_name, additions.load(place[0]))) if place else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, without importing any."""
        lines = [(name, line) for name, (_, line) in (COMMANDS | additions.commands()).items()]
        formatter.write_usage("perfkit", "COMMAND [OPTIONS] …")
        formatter.write_paragraph()
        formatter.write_text(self.help or "")
        with formatter.section("Commands (perfkit COMMAND --help lists the options of one)"):
            formatter.write_dl(lines, col_max=12)


app = typer.Typer(
    name="perfkit", cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    help="A training script, a set of switches, and a measured, honest difference.",
)  # fmt: skip


@app.callback()
def _root() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopping it is as Ctrl-C
