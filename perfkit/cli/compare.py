"""Commands that compare: two recipes or scripts, a recipe with the baseline's training."""

from typing import Annotated

import msgspec
import typer

from perfkit import additions
from perfkit import recipe as recipes
from perfkit.cli.command import complain
from perfkit.cli.options import Output, Recipe, Script, Texts, Training, progress
from perfkit.errors import InvalidValue
from perfkit.results.run import Comparison
from perfkit.results.store import RunStore
from perfkit.show import tables
from perfkit.show.document import Content
from perfkit.studies import compare as comparing
from perfkit.studies import inspect


def compare(
    sides: Annotated[
        Texts,
        typer.Argument(
            metavar="A B",
            help="each a stage, settings (workers=2,amp=bf16), a run's id, or a training script; B is "
            "compared with A. With scripts: their own arguments, after --",
        ),
    ] = None,
    *,
    training: Recipe,
    script: Script,
    output: Output,
    fail_if_slower: Annotated[
        str | None, typer.Option(help="exit with 1 if B is slower than A by more than this, such as 3%")
    ] = None,
    stored: Annotated[bool, typer.Option("--stored", help="two stored runs, without measuring")] = False,
    budget: Annotated[
        float, typer.Option(help="seconds of rounds, over all pairs of processes", min=0)
    ] = 90.0,
    precision: Annotated[float, typer.Option(help="half width of the interval to reach")] = 0.02,
) -> None:
    """Is B faster than A? Interleaves blocks of both in random order until the interval is narrow enough.

    Two scripts are compared as they stand. With --script, B is that script with every --set switch set.
    """
    limit, named = _percent(fail_if_slower), sides or []
    scripts = script.script is not None or any(side.endswith(".py") for side in named[:2])
    if limit is not None and not stored:
        _refuse_gate(training.device or "")
    if not scripts and len(named) != 2:
        raise InvalidValue(
            f"compare was given {len(named)} sides",
            "Name two: A and B, or --script FILE with --set switch=value",
        )
    if stored:
        result = comparing.compare_stored(*(RunStore().get(side) for side in named))
    else:
        if scripts:
            plan, a, b = additions.load("perfkit.scripts.study:sides")(
                script.script, named, script.module, training.settings or [], training.preset, training.seed
            )
        elif training.settings:
            advice = "Write settings as A or B, such as workers=2,amp=bf16"
            raise InvalidValue("--set goes with --script", advice)
        else:
            plan = training.plan()
            a, b = (comparing.candidate(side, plan) for side in named)
        with progress() as follow:
            result = comparing.compare(a, b, plan, budget, precision, progress=follow)
    if limit is not None:
        _refuse_gate(result.a.device)
    record, sections = _record(result), list[Content]([result.describe()])
    if scripts:
        losses = additions.load("perfkit.scripts.study:losses")(result.a, result.b)
        record["losses"] = msgspec.to_builtins(losses)
        sections += additions.load("perfkit.scripts.tables:sides")(result, losses)
    output.show(f"{result.b.title} against {result.a.title}", sections, record)
    # A gate does not let a regression pass because the machine was busy: the interval decides there.
    ratio = result.ratio
    slower = ratio.verdict == "slower" or (ratio.verdict == "disturbed" and ratio.high < 1)
    if limit is not None and slower and ratio.ratio < 1 - limit:
        complain(f"B is slower than A by more than {limit:.1%}")
        raise typer.Exit(1)


def _record(result: Comparison) -> dict[str, object]:
    """The document for `--json`."""
    pairing = result.pairing
    return {
        "schema": 1, "simulated": bool(result.a.simulated), "band": pairing.band, "a": result.a.recipe,
        "b": result.b.recipe, "rounds": result.rounds, "pairs": result.pairs,
        "interleaved": pairing.interleaved, "noise": pairing.noise, **msgspec.to_builtins(result.ratio),
    }  # fmt: skip


def _refuse_gate(device: str) -> None:
    if device.startswith("sim:"):
        raise InvalidValue(
            f"--fail-if-slower is refused on {device}: a prediction decides nothing",
            "Measure on a real device",
        )


def _percent(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise InvalidValue(f"--fail-if-slower was given '{text}'", "Write a share, such as 3% or 0.03")
    return value


def parity(
    what: Annotated[str, typer.Argument(metavar="STAGE|RECIPE", help="a stage, settings or the id of a run")],
    training: Training,
    output: Output,
    steps: Annotated[int, typer.Option(min=1, max=200, help="steps that each side trains")] = 4,
) -> None:
    """Does it still train the same? Losses and outputs against float64, and every switch checked."""
    plan = training.plan()
    side = comparing.candidate(what, plan)
    with progress() as follow:
        result = inspect.parity(plan, side.title, side.recipe or recipes.Recipe(), steps, progress=follow)
    output.show(f"parity of {side.title}", tables.parity(result), result)
    if not result.ok:
        raise typer.Exit(1)
