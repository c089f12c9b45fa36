"""What all commands share: the app, the options of a training, errors in words, progress, output files.

Exit codes: 0 done, 1 failed, 2 misused, 130 stopped.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.machine import write_atomically
from perfkit.recipe import parse_settings
from perfkit.scripts.launch import Launch
from perfkit.show import html, terminal
from perfkit.show.document import Content
from perfkit.studies import plan as plans
from perfkit.studies.plan import Plan, Progress

app: typer.Typer = typer.Typer(
    name="perfkit",
    help="A training script, a set of switches, and a measured, honest difference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

MEASURE, COMPARE, INSIDE, SCRIPT, MACHINE = "Measure", "Compare", "Look inside", "Script", "Machine"
Texts = list[str] | None
Minutes = Annotated[float, typer.Option(help="minutes of measuring", min=0)]
Stages = Annotated[str | None, typer.Option(help="optimizations in order: a,b,c (default: the ladder)")]
_WORKLOAD = "cifar_resnet18, photos, tiny_gpt, or your own as package.module:name"
_DEVICE = "cuda, mps or cpu (default: the first available), or recorded:NAME to play a recording"


@dataclass(frozen=True)
class Training:
    """What is trained, and where: the options that every measuring command has."""

    workload: Annotated[str | None, typer.Option(help=_WORKLOAD)] = None
    preset: Annotated[str | None, typer.Option(help="smoke, quick or paper")] = None
    option: Annotated[Texts, typer.Option(help="name=value for the workload; repeatable")] = None
    device: Annotated[str | None, typer.Option(help=_DEVICE)] = None
    host: Annotated[
        str | None,
        typer.Option(help="of a simulated GPU: mine, article, ideal, or cores=8,fetch_ms=1.85,link_gbs=12"),
    ] = None
    seed: Annotated[int, typer.Option(help="of weights, order and augmentation")] = 0

    def plan(self, stages: list[str] | None = None, **more: Any) -> Plan:
        """The plan of a study; `more` as for `studies.plans.plan`."""
        more |= {"device": self.device, "options": parse_options(self.option), "seed": self.seed}
        more |= {"host": self.host}
        return plans.plan(self.workload, self.preset, stages, **more)


@dataclass(frozen=True)
class Recipe(Training):
    """A training under one recipe."""

    settings: Annotated[
        Texts, typer.Option("--set", help="switch=value, from the baseline up; repeatable")
    ] = None

    def switches(self) -> dict[str, Any]:
        """The settings, parsed."""
        return parse_settings(self.settings or [])


@dataclass(frozen=True)
class Stage(Recipe):
    """A training under the recipe of a stage."""

    stage: Annotated[str | None, typer.Option(help="the recipe of this stage (default: the baseline)")] = None

    def where(self) -> dict[str, Any]:
        """The keyword arguments of the functions in `studies.inspect`."""
        return {
            "workload": self.workload, "recipe": self.stage, "preset": self.preset, "device": self.device,
            "settings": self.switches(), "options": parse_options(self.option), "seed": self.seed,
            "host": self.host,
        }  # fmt: skip


@dataclass(frozen=True)
class Script:
    """A user's own script, which is watched and measured as it stands; its arguments come after `--`."""

    script: Annotated[
        str | None,
        typer.Option(help="your own script (or a command such as torchrun); its arguments after --"),
    ] = None
    module: Annotated[bool, typer.Option("-m", help="--script is a module, as for python -m")] = False

    def launch(self, arguments: Sequence[str]) -> Launch | None:
        """How it is started, with its own arguments; None if none was named."""
        return Launch(self.script, tuple(arguments), self.module) if self.script else None


@dataclass(frozen=True)
class Output:
    """Where a result goes beside the terminal; that it can be written is checked before hours are spent."""

    json_file: Annotated[Path | None, typer.Option("--json", help="write the result here, - for stdout")] = (
        None
    )

    def __post_init__(self) -> None:
        """Refuses a file that cannot be written."""
        check_writable(*(getattr(self, field.name) for field in fields(self)))

    def write(self, document: object) -> None:
        """Writes the document, if it was asked for."""
        if self.json_file:
            write(self.json_file, msgspec.json.format(msgspec.json.encode(document)))

    def show(self, sections: Iterable[Content], document: object) -> None:
        """Writes the document, then prints the sections (`| head` may end the printing)."""
        self.write(document)
        terminal.show(sections, to_stderr=str(self.json_file) == "-")


@dataclass(frozen=True)
class Page(Output):
    """A result that has a page too."""

    html: Annotated[Path | None, typer.Option("--html", help="write one self-contained page here")] = None

    def show_page(self, title: str, sections: Sequence[Content], document: object) -> None:
        """The same, and the page first."""
        if self.html:
            write(self.html, html.page(title, sections))
        self.show(sections, document)


def parse_options(texts: list[str] | None) -> dict[str, Any]:
    """`name=value` texts as a workload's arguments; a value that is not JSON is a text."""
    options: dict[str, Any] = {}
    for name, value in pairs(texts, "option", "name=value, such as image_size=64"):
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


def pairs(texts: list[str] | None, what: str, form: str) -> list[tuple[str, str]]:
    """`name=value` texts, split.

    Args:
        texts: of a repeatable option.
        what: one of them is, for an error.
        form: to write it in, for an error.
    """
    for text in texts or []:
        if text.find("=") < 1:
            raise InvalidValue(f"cannot read the {what} '{text}'", f"Write {form}")
    return [(name, value) for name, _, value in (text.partition("=") for text in texts or [])]


def names(text: str | None) -> list[str] | None:
    """`a,b,c` as a list; None stays None."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(function, eval_str=True).parameters.values())


def command(panel: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a function as a command: a parameter of an options class becomes its fields' options.

    Args:
        panel: the heading under which the help lists it.
    """

    def register(function: Callable[..., None]) -> Callable[..., None]:
        own = _parameters(function)
        groups: dict[str, Any] = {one.name: one.annotation for one in own if is_dataclass(one.annotation)}
        parameters = [
            option.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for one in own
            for option in (_parameters(groups[one.name]) if one.name in groups else [one])
        ]

        @functools.wraps(function)
        def run(**given: Any) -> None:
            with _errors_in_words():
                for name, kind in groups.items():
                    given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
                function(**given)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        app.command(rich_help_panel=panel)(run)
        return run

    return register


@app.callback()
def _root() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stopping it is as Ctrl-C


@contextlib.contextmanager
def _errors_in_words() -> Iterator[None]:
    """Turns what a person can act on into one line and an exit code."""
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
        complain(f"{error.strerror or error}: {error.filename or ''}. Check path, permission, free space")
        raise typer.Exit(1) from None


def complain(problem: object) -> None:
    """One line on stderr."""
    typer.echo(f"perfkit: {problem}", err=True)


@contextlib.contextmanager
def study_progress() -> Iterator[Callable[[Progress], None]]:
    """A bar on stderr for the progress of a study."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda now: bar.update(task, completed=now.fraction, description=now.describe())


def check_writable(*paths: Path | None) -> None:
    """Before hours are spent: can the results be written at all?"""
    for path in paths:
        if path and str(path) != "-":
            folder = path.absolute().parent
            if not (folder.is_dir() and os.access(folder, os.W_OK)):
                raise InvalidValue(
                    f"cannot write {path}", "Name a file in a folder that exists and is writable"
                )


def write(path: Path, text: str | bytes) -> None:
    """Writes a whole file or nothing; `-` is stdout."""
    content = text if isinstance(text, bytes) else text.encode()
    if str(path) == "-":
        sys.stdout.write(content.decode() + "\n")
    else:
        write_atomically(path, content)
