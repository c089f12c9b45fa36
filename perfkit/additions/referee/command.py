"""The command that judges two scripts."""

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Annotated

import msgspec
import typer

from perfkit.additions.referee.match import Match, Terms, compare_whole, two_scripts, with_switches
from perfkit.additions.scripts.command import Module, launcher
from perfkit.additions.scripts.watched import Launch
from perfkit.cli import options as cli
from perfkit.cli.compare import record
from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.recipe import parse_settings

PART = 0.1  # an interval is narrow enough at this part of the effect: ten times as fast is soon clear


def referee(
    programs: Annotated[
        list[str],
        typer.Argument(
            metavar="OLD NEW [-- ARGS]",
            help="two scripts, and the arguments of both; with --set, one script and its arguments",
        ),
    ],
    *,
    module: Module = False,
    settings: Annotated[
        cli.Texts, typer.Option("--set", help="switch=value, set from outside in one script; repeatable")
    ] = None,
    preset: Annotated[str | None, typer.Option(help="smoke, quick or paper")] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="seed of both sides")] = 0,
    allow: Annotated[
        cli.Texts, typer.Option(help="a difference that is meant, such as samples; repeatable")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="run both to their end, and compare all of it")
    ] = False,
    gate: cli.GateOptions,
    output: cli.OutputOptions,
) -> None:
    """Is the new script faster, and does it still train the same? Runs both as they stand, in turn.

    With --set, one script is compared with itself with these switches set. Of
    several ranks: perfkit referee old.py new.py -- torchrun --nproc-per-node 2.
    The exit code is the verdict: 0 faster, and trains the same; 1 not faster;
    3 undecided; 4 trains differently, or evaluates or saves less.
    """
    if whole and gate.budget is not None:
        raise InvalidValue("--whole runs both to their end, however long that takes", "Leave out --budget")
    match = _match(programs, settings or [], module, Terms(preset, seed, allow or []))
    duration = "until both end" if whole else f"at most about {gate.seconds:.0f} s once both train"
    typer.echo(f"{match.a.title} and {match.b.title}: {duration}", err=True)
    with contextlib.nullcontext() if whole else cli.stored_if_possible() as store:
        with cli.progress() as progress, _failure_written(output):
            if whole:
                found = compare_whole(match, progress)
            else:
                plan = match.plan.until(gate.seconds, gate.precision, PART)
                study = partial(match._replace(plan=plan).compare, progress, store)
                found, stopped = cli.until_stopped(progress, study)
                if stopped:
                    found = found._replace(longer="let it go on for longer", is_stopped=True)
                    kept = "is kept (perfkit runs)" if store else "is not stored"
                    typer.echo(f"stopped; what was measured {kept}", err=True)
        result = found.comparison
        verdict = found.verdict(gate.precision, gate.limit)
        document = record(result) | msgspec.to_builtins(verdict)
        title = f"{result.b.title} against {result.a.title}"
        output.deliver(title, verdict.sections(result), document, verdict=verdict.exit_code)


def _match(programs: list[str], settings: list[str], module: bool, terms: Terms) -> Match:
    """The match of two scripts, of one without and with `settings`, or of launches of several ranks."""
    command = programs if settings else programs[2:]
    ranks = launcher(command[0]) if command else None
    if ranks and module:
        raise InvalidValue(f"-m is for python, and {command[0]} starts the scripts", "Give it there")
    if ranks:
        return ranks.match(programs, settings, terms)  # type: ignore[no-any-return]
    if settings:
        script, *arguments = programs
        launch = Launch(script, tuple(arguments), module)
        match = with_switches(launch, parse_settings(settings), terms)
        typer.echo(f"--set: {launch.describe()}, as it is and with {match.b.title}", err=True)
        return match
    if len(programs) < 2:
        what = f"there is nothing to compare {programs[0]} with"
        raise InvalidValue(what, "Name two scripts, or one with --set switch=value")
    first, second, *arguments = programs
    old, new = (Launch(side, tuple(arguments), module) for side in (first, second))
    return two_scripts(old, new, terms)


@contextlib.contextmanager
def _failure_written(output: cli.OutputOptions) -> Iterator[None]:
    """Writes the failure of a script as an outcome for `--json`."""
    try:
        yield
    except PerfkitError as problem:
        if not isinstance(problem, InvalidValue | Cancelled):
            failure = {"schema": 1, "outcome": "failed", "exit_code": 1, "reason": str(problem)}
            with contextlib.suppress(typer.Exit):
                output.deliver("comparison", [], failure)
        raise
