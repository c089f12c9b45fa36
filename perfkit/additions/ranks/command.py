"""`perfkit watch -- torchrun …`, `perfkit scale`, and the sides of `perfkit referee … -- torchrun …`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from perfkit.additions.ranks import scaled, scaling, switches, watching
from perfkit.additions.ranks.launch import launch_of, launch_with
from perfkit.additions.ranks.scaling import Regime
from perfkit.additions.ranks.started import ComparedRanks
from perfkit.additions.ranks.watching import RanksReport
from perfkit.additions.referee.match import Match, Terms, matched
from perfkit.additions.scripts.command import Arguments, Launcher, Module, Program, WatchOptions
from perfkit.additions.scripts.watched import Launch, TrainsAlone
from perfkit.cli import options as cli
from perfkit.errors import InvalidValue
from perfkit.studies.compare import Candidate

_REGIME_HELP = "predict for a kept global batch, or for a kept batch of each rank"
_BUDGET_HELP = "seconds of training for each number of ranks, in three launches"


class RanksLauncher:
    """What `perfkit watch` and `perfkit referee` do with a command that starts several ranks."""

    def watch(self, command: Sequence[str], how: WatchOptions) -> RanksReport | Launch:
        """Says who is late, and why; returns the launch of one script, if that is all that it starts."""
        if how.tries or how.after > 0:
            what = f"{command[0]} starts several ranks, which are watched without --try and --after"
            remedy = "To try a switch: perfkit referee --set no_sync=on -- torchrun … train.py"
            raise InvalidValue(what, remedy)
        values = switches.parse(how.settings or ())
        if of_script := switches.in_words(switches.of_script(values)):
            what = f"{of_script} is for a script, and `watch --set` sets what ranks have"
            raise InvalidValue(what, f"Compare it: perfkit referee --set {of_script} -- {' '.join(command)}")
        launch = launch_of(command, values)
        duration = "until its end" if how.whole else f"about {how.budget:.0f} s once all ranks train"
        typer.echo(f"{launch.describe()}: {duration}", err=True)
        try:
            with cli.progress() as progress, watching.alone(launch, progress):
                return watching.watch_launch(launch, progress, how.budget, how.whole)
        except TrainsAlone as alone:
            if values:
                raise InvalidValue(f"{alone.what} for --set to act on", "Leave it out") from None
            typer.echo(f"{alone.what}: it is watched as one", err=True)
            return alone.launch

    def match(self, programs: list[str], settings: list[str], terms: Terms) -> Match:
        """Two scripts under one command, or one command without and with switches set from outside."""
        values = switches.parse(settings)
        if values:
            plain, switched = launch_of(programs), launch_of(programs, values)
            old, new = (Candidate(each.program, program=each) for each in (plain, switched))
        else:
            first, second, *command = programs
            scripts = [Path(first).resolve(), Path(second).resolve()]
            original = next((word for word in command if Path(word).resolve() in scripts), first)
            old = Candidate(first, program=launch_with(command, first, original))
            new = Candidate(second, program=launch_with(command, second, original))
        for side in (old, new):
            typer.echo(f"{side.title}: {side.program.describe()}", err=True)
        return matched(old, new, terms._replace(process=ComparedRanks), values)


RANKS: Launcher = RanksLauncher()


def scale(
    program: Program,
    output: cli.OutputOptions,
    arguments: Arguments = None,
    *,
    module: Module = False,
    ranks: Annotated[str, typer.Option(help="numbers of ranks, two or more")] = "1,2",
    strong: Annotated[bool | None, typer.Option("--strong/--weak", help=_REGIME_HELP)] = None,
    budget: Annotated[float, typer.Option(min=3, help=_BUDGET_HELP)] = scaling.BUDGET_S,
    out: Annotated[Path | None, typer.Option("-o", metavar="FILE.png", help="write the picture here")] = None,
) -> None:
    """Are more GPUs worth it? Trains your script with each number of ranks, started by torchrun in turn.

    Says samples/s, what is lost to what, and what more ranks could give at most. Whether the
    global batch grows with the ranks is seen from the script's batches.
    """
    counts = scaling.counts_of(ranks)
    script = Launch(program, tuple(arguments or ()), module)
    output.check_files(out)
    regime: Regime | None = None
    if strong is not None:
        regime = "strong" if strong else "weak"
    numbers = ", ".join(map(str, counts))
    typer.echo(f"{program}: {numbers} ranks in turn, three launches with {budget:.0f} s for each", err=True)
    with cli.progress() as progress:
        study = scaling.scale(script, counts, regime, budget, progress)
    sections = scaled.sections(study)
    output.deliver(f"scale {program}", sections, study, out=out, content=lambda: scaled.picture(study).png())
