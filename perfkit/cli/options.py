"""The options that commands share, and where their results go."""

import contextlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from perfkit.cli.command import complain
from perfkit.errors import InvalidValue, PerfkitError, StoreError, what_and_remedy
from perfkit.machine import write_atomically
from perfkit.recipe import pairs, parse_settings

if TYPE_CHECKING:  # else every command would wait for numpy and rich to be imported
    from perfkit.results.store import RunStore
    from perfkit.show.document import Content
    from perfkit.studies.sources import Plan, Progress, Update

Texts = list[str] | None
Stages = Annotated[str | None, typer.Option(help="optimizations in order: a,b,c (default: the ladder)")]
StageName = Annotated[
    str | None, typer.Option("--stage", help="the recipe of this stage (default: the baseline)")
]
Out = Annotated[
    Path | None,
    typer.Option("-o", metavar="FILE", help="write the recording (.json), trace (.json.gz) or script here"),
]
_WORKLOAD = "cifar_resnet18, photos, tiny_gpt, or your own as package.module:name"
_DEVICE = "cuda, mps or cpu (default: the first available), sim:NAME to predict a GPU, or recorded:NAME"


@dataclass(frozen=True)
class TrainingOptions:
    """What is trained, and where: the options that every measuring command has."""

    workload: Annotated[str | None, typer.Option(help=_WORKLOAD)] = None
    preset: Annotated[str | None, typer.Option(help="smoke, quick or paper")] = None
    options: Annotated[Texts, typer.Option("--option", help="name=value for the workload; repeatable")] = None
    device: Annotated[str | None, typer.Option(help=_DEVICE)] = None
    host: Annotated[
        str | None, typer.Option(help="the host of a simulated GPU: article, ideal, or cores=8,fetch_ms=1.85")
    ] = None
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="seed of weights, order, augmentation")] = 0

    def where(self) -> dict[str, Any]:
        return vars(self) | {"options": parse_options(self.options)}

    def plan(self, stages: list[str] | None = None) -> "Plan":
        from perfkit.studies import planning

        return planning.plan(stages=stages, **self.where())


@dataclass(frozen=True)
class RecipeOptions(TrainingOptions):
    """A training under one recipe."""

    settings: Annotated[
        Texts, typer.Option("--set", help="switch=value, in every stage, the baseline included; repeatable")
    ] = None

    def where(self) -> dict[str, Any]:
        return super().where() | {"settings": parse_settings(self.settings)}


@dataclass(frozen=True)
class GateOptions:
    """How long two sides are compared, and when the command fails."""

    fail_if_slower: Annotated[
        str | None, typer.Option(help="exit with 1 only if B is slower than A by more than this, such as 3%")
    ] = None
    budget: Annotated[
        float | None, typer.Option(help="seconds for starting and measuring (default: 90)", min=0)
    ] = None
    precision: Annotated[float, typer.Option(help="stop once the interval is ± this share", min=0)] = 0.02

    def __post_init__(self) -> None:
        _ = self.limit  # so that it is checked before anything is measured

    @property
    def seconds(self) -> float:
        return 90.0 if self.budget is None else self.budget

    @property
    def limit(self) -> float | None:
        """The share by which B may be slower: 0.03 for `3%` or `0.03`; None without a limit."""
        text = self.fail_if_slower
        if text is None:
            return None
        with contextlib.suppress(ValueError):
            value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
            if 0 <= value < 1:
                return value
        raise InvalidValue(f"--fail-if-slower was given '{text}'", "Write a share, such as 3% or 0.03")


@dataclass(frozen=True)
class OutputOptions:
    """Where a result goes in addition to the terminal. Files are checked before anything is measured."""

    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="write the result as JSON; - for stdout")
    ] = None
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="write one self-contained page")
    ] = None

    def __post_init__(self) -> None:
        self.check_files()
        if self.html_file and importlib.util.find_spec("matplotlib") is None:
            raise InvalidValue("--html needs matplotlib", "Install it: pip install matplotlib")

    def check_files(self, out: Path | None = None) -> None:
        """Raises if the files of these options and `out` cannot all be written."""
        check_writable(self.json_file, self.html_file, out)

    def deliver(
        self,
        title: str,
        sections: "Sequence[Content]",
        document: object,
        *,
        verdict: int | None = None,
        out: Path | None = None,
        content: Callable[[], bytes] = bytes,
    ) -> None:
        """Shows a result, then writes each file, then exits with the verdict if there is one.

        Sections go to stderr if a file is stdout. `out` gets the `content`. A file that cannot be written is
        reported, and the others are still written; the exit code is 1 then, unless there is a verdict.
        """
        from perfkit.show import terminal

        def page() -> bytes:
            from perfkit.show import html  # it imports jinja2

            return html.page(f"perfkit: {title}", sections).encode()

        def as_json() -> bytes:
            return msgspec.json.format(msgspec.json.encode(document)) + b"\n"

        outputs = [(self.html_file, page), (self.json_file, as_json), (out, content)]
        files = [(path, make) for path, make in outputs if path]
        files.sort(key=lambda file: _is_stdout(file[0]))  # stdout comes last: its pipe may be closed
        try:
            terminal.show(sections, to_stderr=any(_is_stdout(path) for path, _ in files))
        finally:
            written = [_try_to_write(path, make) for path, make in files]
        if verdict is not None:
            raise typer.Exit(verdict)
        if not all(written):
            raise typer.Exit(1)


def parse_options(texts: Texts) -> dict[str, Any]:
    """`name=value` texts as a workload's arguments. A value that is not JSON is a string."""
    options: dict[str, Any] = {}
    for name, value in pairs(texts, "option", "name=value, such as image_size=64"):
        try:
            options[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            options[name] = value
    return options


def names(text: str | None) -> list[str] | None:
    """`a,b,c` as a list; None stays None. A text without names is returned whole, to be refused later."""
    if text is None:
        return None
    return [name.strip() for name in text.split(",") if name.strip()] or [text]


@contextlib.contextmanager
def progress(tell: "Callable[[Update], None]" = lambda update: None) -> "Iterator[Progress]":
    """A study's bar, or without a terminal a line if it waits for another; `tell` gets the updates."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress as Bar

    from perfkit.studies.sources import Progress

    console = Console(stderr=True)
    waits: set[str] = set()
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=1.0)

        def show(now: "Update") -> None:
            bar.update(task, completed=now.fraction, description=escape(now.describe()))
            tell(now)
            if bar.disable and now.is_waiting and now.phase not in waits:
                waits.add(now.phase)
                typer.echo(now.phase, err=True)

        yield Progress(show)


def until_stopped(progress: "Progress", study: Callable[[], Any]) -> tuple[Any, int | None]:
    """What a study has found, and 130 if Ctrl-C ended it, which is raised where nothing was found yet."""
    try:
        return study(), None
    except KeyboardInterrupt:
        if progress.found is None:
            raise
        return progress.found, 130


@contextlib.contextmanager
def stored() -> "Iterator[RunStore]":
    """The store of a command, which reports at its end what could not be read or written.

    By then the results have been shown. The exit code is 1 if they could not be stored.
    """
    from perfkit.results.store import RunStore

    store = RunStore()
    try:
        yield store
    finally:
        for problem in (*store.problems, *store.lost):
            complain(problem)
    if store.lost:
        raise typer.Exit(1)


@contextlib.contextmanager
def stored_if_possible() -> "Iterator[RunStore | None]":
    """The store of a command whose exit code is a verdict: None, with a message, if there is none."""
    store = None
    with contextlib.ExitStack() as stack:
        try:
            store = stack.enter_context(stored())
        except StoreError as problem:
            complain(f"what is measured will not be stored: {problem}")
        yield store


def check_writable(*paths: Path | None) -> None:
    """Checks, before hours are spent, that the results can be written, each to a different file."""
    files: set[Path] = set()
    for path in paths:
        if path is None:
            continue
        file = path if _is_stdout(path) else path.resolve()
        if file in files:
            name = "standard output" if _is_stdout(path) else path
            raise InvalidValue(f"two results were directed to {name}", "Name a different file for one")
        files.add(file)
        if not (_is_stdout(path) or _is_writable(path)):
            raise InvalidValue(f"cannot write {path}", "Name a file in a folder that exists and is writable")


def _is_stdout(path: Path) -> bool:
    return str(path) == "-"


def _is_writable(path: Path) -> bool:
    """Whether a file can be replaced or created. A device or a pipe is written directly."""
    if path.exists() and not path.is_file():
        return not path.is_dir() and os.access(path, os.W_OK)
    folder = path.resolve().parent
    return folder.is_dir() and os.access(folder, os.W_OK)


def _try_to_write(path: Path, make: Callable[[], bytes]) -> bool:
    """Writes a file unless it has no content. Returns whether that succeeded, and reports an error."""
    try:
        if content := make():
            write(path, content)
    except PerfkitError as problem:
        complain(problem)
        return False
    return True


def write(path: Path, text: str | bytes) -> None:
    """Writes a complete file or nothing; `-` is stdout."""
    content = text if isinstance(text, bytes) else text.encode()
    if _is_stdout(path):
        sys.stdout.flush()
        sys.stdout.buffer.write(content)
        sys.stdout.buffer.flush()
        return
    try:
        write_atomically(path, content)
    except OSError as error:
        raise PerfkitError(*what_and_remedy(error, path)) from None
