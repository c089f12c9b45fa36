"""The command that watches a script as it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from perfkit import lookup, registry
from perfkit.additions.scripts import watched, watching
from perfkit.additions.scripts.watched import Launch
from perfkit.cli import options as cli
from perfkit.errors import InvalidValue
from perfkit.recipe import parse_settings
from perfkit.show.document import Content

Program = Annotated[str, typer.Argument(help="train.py", metavar="SCRIPT")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(help="its own arguments, after --", metavar="-- ARGS", show_default=False),
]
Module = Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python -m")]


@dataclass(frozen=True)
class WatchOptions:
    """How long a script is watched, and what is set or tried."""

    budget: Annotated[float, typer.Option(min=1, help="seconds that it may take once the script trains")] = (
        watching.BUDGET_S
    )
    tries: Annotated[
        bool, typer.Option("--try", help="also measure the two best suggestions, about 30 s or more each")
    ] = False
    after: Annotated[int, typer.Option(min=0, help="steps that pass before it is looked at")] = 0
    whole: Annotated[bool, typer.Option("--whole", help="let it run to its end, watched lightly")] = False
    settings: Annotated[cli.Texts, typer.Option("--set", help="switch=value, set on every rank")] = None


class Report(Protocol):
    """What watching has shown."""

    @property
    def command(self) -> str:
        """What was watched."""

    def sections(self) -> list[Content]:
        """The whole report, for people."""


class Launcher(Protocol):
    """What watches and compares commands that start several ranks."""

    def watch(self, command: Sequence[str], how: WatchOptions) -> Report | Launch:
        """Watches all ranks of a command; if it has none, returns the one script that it trains."""

    def match(self, programs: list[str], settings: list[str], terms: Any) -> Any:
        """A match of the referee: two scripts under one command, or one command with other settings."""


def launcher(program: str) -> Launcher | None:
    """What knows the ranks that a program starts; None for other programs, and files of its name."""
    reference = None if Path(program).is_file() else registry.table("LAUNCHERS").get(program)
    return lookup.load(reference) if reference else None


def watch(
    program: Program,
    output: cli.OutputOptions,
    how: WatchOptions,
    arguments: Arguments = None,
    module: Module = False,
) -> None:
    """Runs your training script as it is, and says where its time goes, in which lines, and what to try.

    Several ranks are watched by the command that starts them: perfkit watch -- torchrun --nproc-per-node 2
    train.py.
    """
    starts_ranks = launcher(program)
    found: Report | Launch
    if starts_ranks:
        command = [*(["python", "-m"] if module else []), program, *(arguments or [])]
        found = starts_ranks.watch(command, how)
    else:
        if how.settings:
            parse_settings(how.settings)  # a switch that a script does not have is refused as such
            problem = "--set is for launches of several ranks, and a script is watched as it is"
            remedy = f"Compare it: perfkit referee --set {how.settings[0]} {program}"
            raise InvalidValue(problem, remedy)
        found = Launch(program, tuple(arguments or ()), module)
    report, code = _watch_script(found, how) if isinstance(found, Launch) else (found, None)
    output.deliver(report.command, report.sections(), report, verdict=code)


def _watch_script(launch: Launch, how: WatchOptions) -> tuple[Report, int | None]:
    """The report, and 130 if Ctrl-C was pressed while switches were tried."""
    seconds = how.budget + (2 * watching.TRY_S if how.tries else 0.0)
    duration = "until its end" if how.whole else f"about {seconds:.0f} s once it trains"
    typer.echo(f"{launch.describe()}: {duration}", err=True)
    try:
        with cli.progress() as follow:
            times = how.budget, how.after, how.whole, how.tries
            return cli.until_stopped(follow, partial(watching.watch_script, launch, follow, *times))
    except watched.TrainsElsewhere as elsewhere:
        python = launcher("python")
        if python is None or how.tries or how.after > 0:
            raise
        typer.echo(f"{elsewhere.what}. It is started again, and all of them are watched", err=True)
        found = python.watch(["python", *launch.words[1:]], how)
        if isinstance(found, Launch):
            raise
        return found, None
