"""The commands that watch a script as it stands, judge two of them, and edit one so that it has switches."""

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from perfkit import registry
from perfkit.additions.scripts import patch as patching
from perfkit.additions.scripts import referee as refereeing
from perfkit.additions.scripts import watching
from perfkit.additions.scripts.watched import Launch
from perfkit.cli import options as cli
from perfkit.cli.compare import gate_code, record
from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.recipe import parse_settings
from perfkit.results.comparison import Comparison
from perfkit.results.store import RunStore
from perfkit.show import terminal
from perfkit.studies.compare import compare
from perfkit.studies.sources import Progress

Program = Annotated[str, typer.Argument(help="train.py", metavar="SCRIPT")]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(help="its own arguments, after --", metavar="-- ARGS", show_default=False),
]
Module = Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python -m")]

PART = 0.1
"""The half width of an interval that is enough, as a part of the effect: ten times is soon clear."""


def watch(
    program: Program,
    output: cli.Output,
    arguments: Arguments = None,
    module: Module = False,
    budget: Annotated[
        float, typer.Option(min=1, help="seconds that it may take once the script trains")
    ] = watching.BUDGET_S,
    tries: Annotated[
        bool, typer.Option("--try", help="also measure the two best suggestions, about 30 s each")
    ] = False,
    after: Annotated[int, typer.Option(min=0, help="steps that pass before it is looked at")] = 0,
    whole: Annotated[bool, typer.Option("--whole", help="let it run to its end, watched lightly")] = False,
) -> None:
    """Runs your training script as it is, and says where its time goes, in which lines, and what to try.

    Several ranks are watched by the command that starts them: perfkit watch -- torchrun --nproc-per-node 2
    train.py.
    """
    if (several := registry.table("LAUNCHERS").get(Path(program).name)) and not Path(program).is_file():
        registry.load(several)(program, arguments or [], module, budget, whole, output)
        return
    launch = Launch(program, tuple(arguments or ()), module)
    seconds = budget + (2 * watching.TRY_S if tries else 0.0)
    duration = "until its end" if whole else f"about {seconds:.0f} s once it trains"
    typer.echo(f"{launch.describe()}: {duration}", err=True)
    with cli.progress() as follow:
        result = watching.watch(launch, follow, budget, tries, after, whole)
    output.show(program, result.sections(), result)


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
    seed: Annotated[int, typer.Option(help="seed of both sides")] = 0,
    allow: Annotated[
        cli.Texts, typer.Option(help="a difference that is meant, such as samples; repeatable")
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="run both to their end, and compare all of it")
    ] = False,
    gate: cli.Gate,
    output: cli.Output,
) -> None:
    """Is the new script faster, and does it still train the same? Runs both as they stand, in turn.

    With --set, one script is compared with itself with these switches set. The
    exit code is the verdict: 0 faster, and trains the same; 1 not faster;
    3 undecided; 4 trains differently, or evaluates or saves less.
    """
    if settings:
        script, *arguments = programs
        launch = Launch(script, tuple(arguments), module)
        match = refereeing.with_switches(launch, parse_settings(settings), preset, seed, allowed=allow or [])
    elif len(programs) >= 2:
        first, second, *arguments = programs
        old, new = (Launch(side, tuple(arguments), module) for side in (first, second))
        match = refereeing.two_scripts(old, new, preset, seed, allowed=allow or [])
    else:
        what = f"there is nothing to compare {programs[0]} with"
        raise InvalidValue(what, "Name two scripts, or one with --set switch=value")
    duration = "until both end" if whole else f"at most about {gate.budget:.0f} s once both train"
    typer.echo(f"{match.a.title} and {match.b.title}: {duration}", err=True)
    with cli.stored() as store:
        with cli.progress() as follow:
            result = _measured(match, gate, output, follow, None if whole else store)
        code = None if gate.limit is None else gate_code(result, gate.limit)
        verdict = match.verdict(result, gate.precision, code, whole)
        sections = verdict.sections(result)
        document = record(result) | msgspec.to_builtins(verdict)
        output.show(f"{result.b.title} against {result.a.title}", sections, document)
        if verdict.exit_code:
            raise typer.Exit(verdict.exit_code)


def _measured(
    match: refereeing.Match, gate: cli.Gate, output: cli.Output, follow: Progress, store: RunStore | None
) -> Comparison:
    """Both sides measured; a script that fails is an outcome too, for whoever reads `--json`.

    Without a `store`, both run to their end.
    """
    try:
        if store is None:
            return refereeing.compare_whole(match, follow)
        limits = gate.budget, gate.precision, PART
        return compare(match.a, match.b, match.plan, *limits, progress=follow, store=store)
    except PerfkitError as problem:
        if not isinstance(problem, InvalidValue | Cancelled):
            failure = {"schema": 1, "outcome": "failed", "exit_code": 1, "reason": str(problem)}
            output.show("comparison", [], failure)
        raise


def patch(
    program: Program,
    arguments: Arguments = None,
    *,
    module: Module = False,
    settings: Annotated[list[str], typer.Option("--set", help="switch=value; repeatable")],
    budget: Annotated[
        float,
        typer.Option(help="seconds of rounds against the switches set from outside; 0: unverified", min=0),
    ] = 30.0,
) -> None:
    """Prints the edit of your own script that sets switches, at the calls seen while it trained."""
    switches = parse_settings(settings)
    launch = Launch(program, tuple(arguments or ()), module)
    with cli.progress() as follow:
        result = patching.make(launch, switches, follow)
        proof = patching.verify(result, launch, budget, follow)
    sys.stdout.write(result.diff())
    terminal.show([*result.notes(), proof.evidence], to_stderr=True)
    if not proof.ok:
        raise typer.Exit(1)
