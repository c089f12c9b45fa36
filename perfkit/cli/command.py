"""From a function to a command of Typer, with one-line errors and exit codes.

A parameter becomes an option or an argument, as Typer documents it. A parameter whose type is a dataclass,
such as `options.GateOptions`, becomes one option for each field. To add an option, add a field.
"""

import contextlib
import inspect
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import typer
from typer.core import TyperCommand

from perfkit.errors import InvalidValue, PerfkitError, RunFailed, in_words


def as_app(name: str, function: Callable[..., None]) -> typer.Typer:
    """An app with one command, which calls the function with what was typed."""
    groups: dict[str, Any] = {}
    options: list[inspect.Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if is_dataclass(parameter.annotation):
            groups[parameter.name] = parameter.annotation
            options += inspect.signature(groups[parameter.name], eval_str=True).parameters.values()
        else:
            options.append(parameter)

    def run(**values: Any) -> None:
        with errors_in_words():
            for option, value in values.items():
                if isinstance(value, float) and not math.isfinite(value):
                    what = f"--{option.replace('_', '-')} was given {value}"
                    raise InvalidValue(what, "Give a finite number")
            for group, kind in groups.items():
                values[group] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            function(**values)

    # Typer reads this signature. By keyword, because parameters with a default may come before others.
    options = [option.replace(kind=inspect.Parameter.KEYWORD_ONLY) for option in options]
    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name, cls=_StrictCommand, help=inspect.getdoc(function))(run)
    return app


class _StrictCommand(TyperCommand):
    """A command that refuses an option that is given twice: of the two, only the last one would count."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            parameters: list[Any] = self.make_parser(ctx).parse_args(list(args))[2]
        except Exception as problem:  # click's NoSuchOption has possibilities
            if hasattr(problem, "possibilities") and "-- ARGS" in " ".join(self.get_usage(ctx).split()):
                near = f" Possible: {', '.join(problem.possibilities)}." if problem.possibilities else ""
                ctx.fail(f"{problem}.{near} A script's own options follow after --")
            raise
        for option in parameters:
            has_one_value = option.param_type_name == "option" and not (option.multiple or option.is_flag)
            if has_one_value and parameters.count(option) > 1:
                ctx.fail(f"{option.opts[0]} was given {parameters.count(option)} times. Give it once")
        return super().parse_args(ctx, args)


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
    except KeyboardInterrupt as stop:
        typer.echo("; ".join(["stopped", *stop.args]), err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:  # `| head` has read enough: exit like other tools at a closed pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(141) from None
    except OSError as error:
        explained = in_words(error, "standard output")
        if explained is None:
            raise
        complain(explained)
        raise typer.Exit(1) from None


def complain(problem: object) -> None:
    """Prints one line to stderr."""
    typer.echo(f"perfkit: {problem}", err=True)
