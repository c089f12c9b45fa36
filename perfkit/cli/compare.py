"""Commands that compare: two recipes, a recipe with itself, every optimization, every recipe of a space."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from perfkit.cli import app as cli
from perfkit.errors import InvalidValue
from perfkit.recipe import parse_settings
from perfkit.results import noise as noises
from perfkit.results.simulated import refuse
from perfkit.results.store import RunStore
from perfkit.scripts import study as watching
from perfkit.scripts import tables as tables_script
from perfkit.scripts.launch import Launch
from perfkit.search import attribute as attributing
from perfkit.search import tables as tables_search
from perfkit.search import tune as tuning
from perfkit.show import document, tables_studies, terminal
from perfkit.studies import compare as comparing
from perfkit.studies import parity as proving
from perfkit.studies.compare import Candidate
from perfkit.studies.plan import Plan


@cli.command(cli.COMPARE)
def compare(
    sides: Annotated[
        cli.Texts,
        typer.Argument(
            metavar="A B",
            help="each a stage, settings (workers=2,amp=bf16), a run's id, or a training script; B is "
            "compared with A. With scripts: their own arguments, after --",
        ),
    ] = None,
    *,
    training: cli.Recipe,
    script: cli.Script,
    output: cli.Output,
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
    limit, given, launch = _percent(fail_if_slower), sides or [], script.launch(sides or [])
    two_scripts = launch is None and any(side.endswith(".py") for side in given[:2])
    if len(given) < 2 if two_scripts else launch is None and len(given) != 2:
        raise InvalidValue(
            f"compare was given {len(given)} sides",
            "Name two: A and B, or --script FILE with --set switch=value",
        )
    if limit is not None and not stored:
        refuse_gate(training.device or "")
    if stored:
        result = comparing.compare_stored(*(RunStore().get(side) for side in given))
    else:
        plan, a, b = _sides(training, launch, given, two_scripts)
        with cli.study_progress() as show:
            result = comparing.compare(a, b, plan, budget, precision, on_progress=show)
    if limit is not None:
        refuse_gate(result.a.device)
    record = {
        "schema": 1, "simulated": bool(result.a.simulated), "band": result.pairing.band,
        "a": result.a.recipe, "b": result.b.recipe, "rounds": result.rounds,
        "pairs": result.pairs, "interleaved": result.pairing.interleaved, "noise": result.pairing.noise,
        **msgspec.to_builtins(result.ratio),
    }  # fmt: skip
    sections: list[document.Content] = [result.describe()]
    if launch or two_scripts:
        check = watching.losses(result.a, result.b)
        record["losses"] = msgspec.to_builtins(check)
        sections = [*sections, *tables_script.sides(result, check)]
    output.show(sections, record)
    # A gate does not let a regression pass because the machine was busy: the interval decides there.
    slower = result.ratio.verdict == "slower" or (
        result.ratio.verdict == "disturbed" and result.ratio.high < 1
    )
    if limit is not None and slower and result.ratio.ratio < 1 - limit:
        cli.complain(f"B is slower than A by more than {limit:.1%}")
        raise typer.Exit(1)


def _sides(
    training: cli.Recipe, launch: Launch | None, given: list[str], two_scripts: bool
) -> tuple[Plan, Candidate, Candidate]:
    """The plan and both sides: of a script, as it is and with switches set; of two scripts, as they are."""
    if launch:
        if not training.settings:
            raise InvalidValue("there is nothing to compare the script with", "Add --set switch=value")
        b = Candidate(", ".join(training.settings), changes=training.switches())
        return watching.script_plan(launch, training.preset, training.seed), Candidate("as it is"), b
    if training.settings:
        raise InvalidValue("--set goes with --script", "Write settings as A or B, such as workers=2,amp=bf16")
    if not two_scripts:
        plan = training.plan()
        return plan, comparing.candidate(given[0], plan), comparing.candidate(given[1], plan)
    files = [Path(side) for side in given[:2]]
    if any(file.suffix != ".py" for file in files):
        raise InvalidValue("one side is a script and the other is not", "Name two scripts, or none")
    first, second = (Launch(str(file), tuple(given[2:])) for file in files)
    second.command()  # that there is such a file
    names = given[:2] if files[0].name == files[1].name else [file.name for file in files]
    plan = watching.script_plan(first, training.preset, training.seed)
    return plan, Candidate(names[0], launch=first), Candidate(names[1], launch=second)


def refuse_gate(device: str) -> None:
    """A prediction never lets a change pass, or fails it."""
    refuse(device, "--fail-if-slower", "a prediction decides nothing; measure on a real device")


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


@cli.command(cli.COMPARE)
def parity(
    what: Annotated[str, typer.Argument(metavar="STAGE|RECIPE", help="a stage, settings or the id of a run")],
    training: cli.Training,
    steps: Annotated[int, typer.Option(min=1, max=200, help="that each side trains")] = 4,
) -> None:
    """Does it still train the same? Losses and outputs against float64, and every switch checked."""
    plan = training.plan()
    side = comparing.candidate(what, plan)
    with cli.study_progress() as show:
        result = proving.parity(plan, side.title, side.recipe, steps, on_progress=show)
    terminal.show(tables_studies.parity(result))
    if not result.ok:
        raise typer.Exit(1)


@cli.command(cli.COMPARE)
def attribute(
    training: cli.Training,
    output: cli.Output,
    stages: cli.Stages = None,
    budget: cli.Minutes = 10.0,
    orders: Annotated[int, typer.Option(min=2, help="random orders, where there are many stages")] = 6,
) -> None:
    """What is each optimization worth, whatever the order? Alone, after the others, on average (Shapley)."""
    plan = training.plan()
    with cli.study_progress() as show:
        result = attributing.attribute(plan, cli.names(stages), 60 * budget, orders, on_progress=show)
    output.show(tables_search.attribution(result), result)


@cli.command(cli.COMPARE)
def tune(
    training: cli.Training,
    script: cli.Script,
    arguments: Annotated[
        cli.Texts, typer.Argument(help="with --script: its own arguments, after --", metavar="[-- ARGS]")
    ] = None,
    space: Annotated[
        cli.Texts, typer.Option(help="switch=value,value…; repeatable (default: the usual ones)")
    ] = None,
    memory: Annotated[float | None, typer.Option(help="cap in GB", min=0)] = None,
    budget: cli.Minutes = 10.0,
    plot: Annotated[
        Path | None, typer.Option(help="a PNG: speed against memory of all that was tried")
    ] = None,
) -> None:
    """Finds the recipe with the most samples/s under a memory cap that still trains the same."""
    cli.check_writable(plot)
    launch, values = script.launch(arguments or []), {}
    if arguments and launch is None:
        raise InvalidValue(f"tune was given '{arguments[0]}'", "Name your script with --script")
    plan = watching.script_plan(launch, training.preset, training.seed) if launch else training.plan()
    for name, given in cli.pairs(space, "space", "switch=value,value, such as workers=0,2,4"):
        values[name] = [parse_settings([f"{name}={value}"])[name.strip()] for value in given.split(",")]
    cap = int(memory * 1e9) if memory else None
    with cli.study_progress() as show:
        result = tuning.tune(plan, values or None, cap, 60 * budget, on_progress=show)
    sections = tables_search.tuning(result)
    if plot:
        cli.write(plot, document.figure(sections, "pareto").png())
    terminal.show(sections)


@cli.command(cli.COMPARE)
def noise(
    training: cli.Training,
    pairs: Annotated[int, typer.Option(min=2, max=100, help="of fresh processes")] = 10,
    budget: Annotated[float, typer.Option(help="seconds of measuring for a pair", min=0)] = 30.0,
) -> None:
    """Measures A/A noise: how far apart identical runs come out here. Verdicts take it into account."""
    plan = training.plan()
    with cli.study_progress() as show:
        result = comparing.measure_noise(plan, pairs, budget, on_progress=show)
    terminal.show(tables_studies.noise(result, plan.device, noises.load(plan.device)))
