"""How a function becomes a command: options from dataclasses, errors in words, exit codes.

Exit codes: 0 done, 1 failed, 2 misused, 130 stopped.
"""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import typer

from perfkit.errors import InvalidValue, PerfkitError, explain


def single(name: str, function: Callable[..., None]) -> typer.Typer:
    """An app of one command: a parameter of an options dataclass becomes the options of its fields."""
    parameters = _parameters(function)
    groups: dict[str, Any] = {one.name: one.annotation for one in parameters if is_dataclass(one.annotation)}
    options = [
        option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in parameters
        for option in (_parameters(groups[parameter.name]) if parameter.name in groups else [parameter])
    ]

    @functools.wraps(function)
    def run(**values: Any) -> None:
        with errors_in_words():
            for group, kind in groups.items():
                values[group] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
            function(**values)

    run.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in options}
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name)(run)
    return app


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


@contextlib.contextmanager
def errors_in_words() -> Iterator[None]:
    """Says what a person can act on in one line; anything else is a bug and keeps its traceback."""
    try:
        yield
    except PerfkitError as problem:
        complain(problem)
        raise typer.Exit(2 if isinstance(problem, InvalidValue) else 1) from None
    except KeyboardInterrupt:
        typer.echo("stopped; what was finished is kept (perfkit runs)", err=True)
        raise typer.Exit(130) from None
    except BrokenPipeError:  # `| head` has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        what, remedy = explain(error)
        if error.filename is None or not remedy:
            raise
        complain(f"{what}. {remedy}")
        raise typer.Exit(1) from None


def complain(problem: object) -> None:
    """One line on stderr."""
    typer.echo(f"perfkit: {problem}", err=True)
