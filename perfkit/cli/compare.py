"""Commands that compare and check: two recipes or scripts, a recipe's training."""

import contextlib
from typing import Annotated

import msgspec
import typer

from perfkit import registry
from perfkit.cli import complain
from perfkit.cli.options import Output, Recipe, Script, Texts, Training, progress
from perfkit.errors import Cancelled, InvalidValue, PerfkitError
from perfkit.show import tables
from perfkit.show.document import Content
from perfkit.studies import compare as comparing
from perfkit.studies import inspect


def _share(text: str | None) -> float | None:
    """`3%` or `0.03` as 0.03."""
    if text is None:
        return None
    with contextlib.suppress(ValueError):
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if 0 <= value < 1:
            return value
    raise InvalidValue(f"--fail-if-slower was given '{text}'", "Write a share, such as 3% or 0.03")


def compare(
    sides: Annotated[
        Texts,
        typer.Argument(
            metavar="A B",
            help="each a stage, settings (workers=2,amp=bf16), or a training script; B is "
            "compared with A. With scripts: their own arguments, after --",
        ),
    ] = None,
    *,
    training: Recipe,
    script: Script,
    output: Output,
    allow: Annotated[
        Texts, typer.Option(help="of scripts: a difference that is meant, such as samples; repeatable")
    ] = None,
    fail_if_slower: Annotated[
        str | None, typer.Option(help="exit with 1 only if B is slower than A by more than this, such as 3%")
    ] = None,
    budget: Annotated[
        float, typer.Option(help="seconds of rounds, over all pairs of processes", min=0)
    ] = 90.0,
    precision: Annotated[float, typer.Option(help="until the interval is ± this share", min=0)] = 0.02,
) -> None:
    """Is B faster than A? Interleaves blocks of both in random order until the interval is narrow enough.

    Two scripts are compared as they stand. With --script, B is that script with
    every --set switch set. Of scripts the exit code is the verdict: 0 faster, and
    trains the same; 1 not faster; 3 undecided; 4 trains differently.
    """
    limit, named, judge = _share(fail_if_slower), sides or [], None
    if any(side.endswith(".py") for side in named[:2]) or script.script or training.settings or allow:
        match = registry.load("perfkit.additions.scripts.referee:match")
        plan, a, b, judge = match(script, training, named, allow or [])
        typer.echo(f"{a.title} and {b.title}: about {budget:.0f} s once both train", err=True)
    elif len(named) == 2:
        plan = training.plan()
        a, b = (comparing.candidate(side, plan) for side in named)
    else:
        how = "Name two: A and B, such as baseline and workers=2,amp=bf16, or old.py and new.py"
        raise InvalidValue(f"compare was given {len(named)} side{'s' * (len(named) != 1)}", how)
    try:
        with progress() as follow:
            if limit is not None:
                plan.source(plan, follow).require("--fail-if-slower")
            pairs = 1 if judge else None  # a further pair of scripts would take their start-up once more
            result = comparing.compare(a, b, plan, budget, precision, pairs, progress=follow)
    except PerfkitError as problem:
        if judge and not isinstance(problem, InvalidValue | Cancelled):
            failure = {"schema": 1, "outcome": "failed", "exit_code": 1, "reason": str(problem)}
            output.show("comparison", [], failure)
        raise
    ratio = result.ratio
    record = {
        "schema": 1,
        "simulated": bool(result.a.simulated),
        "band": result.pairing.band,
        "a": result.a.recipe,
        "b": result.b.recipe,
        "rounds": result.rounds,
        "pairs": result.pairs,
        "interleaved": result.pairing.interleaved,
        "noise": result.pairing.noise,
        **msgspec.to_builtins(ratio),
    }
    sections: list[Content] = [result.describe()]
    # A gate does not let a regression pass because the machine was busy: the interval decides there.
    is_slower = ratio.is_slower or (ratio.verdict == "disturbed" and ratio.high < 1)
    fails = limit is not None and is_slower and ratio.ratio < 1 - limit
    code = int(fails)
    if judge:
        verdict = judge(result, precision, fails if limit is not None else None)
        record |= msgspec.to_builtins(verdict)
        sections += verdict.sections(result)
        code = verdict.exit_code
    output.show(f"{result.b.title} against {result.a.title}", sections, record)
    if fails:
        complain(f"B is slower than A by more than {limit:.1%}")
    if code:
        raise typer.Exit(code)


def parity(
    what: Annotated[str, typer.Argument(metavar="STAGE|RECIPE", help="a stage, or workers=2,amp=bf16")],
    training: Training,
    output: Output,
    steps: Annotated[int, typer.Option(min=2, max=200, help="steps that each side trains")] = 4,
) -> None:
    """Does it still train the same? Losses and outputs against float64, and every switch checked."""
    plan = training.plan()
    side = comparing.candidate(what, plan)
    with progress() as follow:
        recipe = plan.source(plan, follow).baseline().replace(**side.changes)
        result = inspect.parity(plan, side.title, recipe, steps, progress=follow)
    output.show(f"parity of {side.title}", tables.parity(result), result)
    if not result.ok:
        raise typer.Exit(1)
