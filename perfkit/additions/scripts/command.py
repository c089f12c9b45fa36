"""The command that watches a script as it is."""

from pathlib import Path
from typing import Annotated

import typer

from perfkit import lookup, registry
from perfkit.additions.scripts import watched, watching
from perfkit.cli import options as cli
from perfkit.errors import InvalidValue
from perfkit.recipe import parse_settings

Program = Annotated[str, typer.Argument(help="train.py", metavar="SCRIPT")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(help="its own arguments, after --", metavar="-- ARGS", show_default=False),
]
Module = Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python -m")]


def launcher(program: str) -> str | None:
    """The module for a program that starts several ranks; None for other programs, and files of its name."""
    return None if Path(program).is_file() else registry.table("LAUNCHERS").get(program)


def watch(
    program: Program,
    output: cli.OutputOptions,
    arguments: Arguments = None,
    module: Module = False,
    budget: Annotated[
        float, typer.Option(min=1, help="seconds that it may take once the script trains")
    ] = watching.BUDGET_S,
    tries: Annotated[
        bool, typer.Option("--try", help="also measure the two best suggestions, about 30 s or more each")
    ] = False,
    after: Annotated[int, typer.Option(min=0, help="steps that pass before it is looked at")] = 0,
    whole: Annotated[bool, typer.Option("--whole", help="let it run to its end, watched lightly")] = False,
    settings: Annotated[cli.Texts, typer.Option("--set", help="switch=value, set on every rank")] = None,
) -> None:
    """Runs your training script as it is, and says where its time goes, in which lines, and what to try.

    Several ranks are watched by the command that starts them: perfkit watch -- torchrun --nproc-per-node 2
    train.py.
    """
    if ranks_module := launcher(program):
        command = [*(["python", "-m"] if module else []), program, *(arguments or [])]
        watch_ranks = lookup.load(f"{ranks_module}:watch_ranks")
        try:
            watch_ranks(command, budget, whole, output, settings, tries or after > 0)
            return
        except watched.TrainsAlone as alone:
            if settings:
                raise InvalidValue(f"{alone.what} for --set to act on", "Leave it out") from None
            typer.echo(f"{alone.what}: it is watched as one", err=True)
            program, module = alone.launch.program, alone.launch.module
            arguments = [*alone.launch.arguments]
    if settings:
        parse_settings(settings)  # a switch that a script does not have is refused as such
        problem = "--set is for launches of several ranks, and a script is watched as it is"
        raise InvalidValue(problem, f"Compare it: perfkit referee --set {settings[0]} {program}")
    launch = watched.Launch(program, tuple(arguments or ()), module)
    seconds = budget + (2 * watching.TRY_S if tries else 0.0)
    duration = "until its end" if whole else f"about {seconds:.0f} s once it trains"
    typer.echo(f"{launch.describe()}: {duration}", err=True)
    try:
        with cli.progress() as follow:
            result = watching.watch_script(launch, follow, budget, after, whole, tries)
    except watched.TrainsElsewhere as elsewhere:
        ranks_module = launcher("python")
        if ranks_module is None or tries or after > 0:
            raise
        typer.echo(f"{elsewhere.what}. It is started again, and all of them are watched", err=True)
        watch_ranks = lookup.load(f"{ranks_module}:watch_ranks")
        watch_ranks(["python", *launch.words[1:]], budget, whole, output)
    else:
        output.deliver(program, result.sections(), result)
