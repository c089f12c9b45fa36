"""`perfkit watch -- torchrun …`."""

import typer

from perfkit.additions.ranks.launched import launch_of
from perfkit.additions.ranks.watching import watch as watch_ranks
from perfkit.cli import options as cli


def watch(
    program: str, arguments: list[str], module: bool, budget: float, whole: bool, output: cli.Output
) -> None:
    """Runs a command that starts several ranks, and says who is late, and why."""
    launch = launch_of(program, arguments, module)
    typer.echo(f"{launch.describe()}: about {budget:.0f} s once all ranks train", err=True)
    with cli.progress() as follow:
        result = watch_ranks(launch, follow, budget, whole)
    output.show(launch.describe(), result.sections(), result)
