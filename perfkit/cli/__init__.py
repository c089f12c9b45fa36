"""The command line: a table of commands. A command's module is imported when the command is used.

Additions have their own commands; see `perfkit.registry`. A function becomes a command with options from
dataclasses, clear errors, and exit codes: 0 done, 1 failed, 2 misused, 130 stopped, 141 a pipe was closed.
"""

import contextlib
import functools
import inspect
import io
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import typer
from typer.core import TyperGroup

from perfkit import lookup, registry
from perfkit.errors import InvalidValue, PerfkitError, RunFailed, in_words, one_of

COMMANDS = {
    "run": ("perfkit.cli.run:run", "Measure a ladder of optimizations, and keep those that help"),
    "runs": ("perfkit.cli.show:runs", "List the stored runs"),
    "show": ("perfkit.cli.show:show", "Show a run, a session or a recording; write its report"),
    "compare": ("perfkit.cli.compare:compare", "Is B faster than A?"),
    "export": ("perfkit.cli.export:export", "Write the standalone training script of a recipe"),
    "diff": ("perfkit.cli.export:diff", "What an optimization changes in the training script"),
}  # fmt: skip
"""Name → (`module:attribute`, the line for `perfkit --help`)."""


def _every() -> dict[str, tuple[str, str]]:
    return COMMANDS | registry.table("COMMANDS")


class _Commands(TyperGroup):
    """A group that knows its commands by name and imports a command only when it is used."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _every():
            ctx.fail(str(one_of(cmd_name, list(_every()), "command")))
        return typer.main.get_command(single(cmd_name, lookup.load(_every()[cmd_name][0])))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        formatter.write_usage("perfkit", "COMMAND [OPTIONS] …")
        formatter.write_paragraph()
        formatter.write_text(self.help or "")
        with formatter.section("Commands (perfkit COMMAND --help lists the options of one)"):
            formatter.write_dl([(name, line) for name, (_, line) in _every().items()], col_max=12)


app = typer.Typer(
    name="perfkit",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="A training script, a set of switches, and a measured, honest difference.",
)


@app.callback()
def _root() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopping it is like Ctrl-C
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # not every terminal can print ×


def single(name: str, function: Callable[..., None]) -> typer.Typer:
    """An app with one command. A parameter that is a dataclass becomes one option for each of its fields."""
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for parameter in _parameters(function):
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            options += _parameters(groups[parameter.name])
        else:
            options.append(parameter)
    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]

    @functools.wraps(function)
    def run(**values: Any) -> None:
        with errors_in_words():
            _require_finite(values)
            for group, kind in groups.items():
                values[group] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            function(**values)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(run)
    return app


def _require_finite(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidValue(f"--{name.replace('_', '-')} was given {value}", "Give a finite number")


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


@contextlib.contextmanager
def errors_in_words() -> Iterator[None]:
    """Reports an error that the user can act on in one line. Any other is a bug and keeps its traceback."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: complain(message)
            yield
        sys.stdout.flush()
    except PerfkitError as problem:
        if isinstance(problem, RunFailed) and problem.output:
            typer.echo(problem.output, err=True)
        complain(problem)
        raise typer.Exit(2 if isinstance(problem, InvalidValue) else 1) from None
    except KeyboardInterrupt:
        typer.echo("stopped; what was finished is kept (perfkit runs)", err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:  # `| head` has read enough: exit like other tools at a closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(141) from None
    except OSError as error:
        mendable = in_words(error, "standard output")
        if mendable is None:
            raise
        complain(mendable)
        raise typer.Exit(1) from None


def complain(problem: object) -> None:
    """Prints one line to stderr."""
    typer.echo(f"perfkit: {problem}", err=True)
