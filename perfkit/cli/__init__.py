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

_HEADINGS = {
    "Measure": ("run", "runs", "show"),
    "Compare": ("compare", "parity", "attribute", "tune"),
    "Look inside": ("profile", "trace", "memory"),
    "Your own script": ("watch", "patch"),
    "The training program": ("export", "diff"),
    "This machine": ("doctor",),
}


class _Commands(TyperGroup):
    """A group that knows its commands by name and imports one when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *additions.commands()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        from perfkit.cli.command import single

        place = (COMMANDS | additions.commands()).get(cmd_name)
        return typer.main.get_command(single(cmd_name, additions.load(place[0]))) if place else None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """The list of commands, without importing any."""
        table = COMMANDS | additions.commands()
        listed = {name for names in _HEADINGS.values() for name in names}
        headings = _HEADINGS | {"More": tuple(name for name in table if name not in listed)}
        formatter.write_usage("perfkit", "COMMAND [OPTIONS] …")
        formatter.write_paragraph()
        formatter.write_text(self.help or "")
        for heading, names in headings.items():
            if lines := [(name, table[name][1]) for name in names if name in table]:
                with formatter.section(heading):
                    formatter.write_dl(lines, col_max=12)
        formatter.write_paragraph()
        formatter.write_text("perfkit COMMAND --help lists the options of a command.")


app = typer.Typer(
    name="perfkit", cls=_Commands, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False,
    help="A training script, a set of switches, and a measured, honest difference.",
)  # fmt: skip


@app.callback()
def _root() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopping it is as Ctrl-C
