"""`perfkit tune`."""

from functools import partial
from typing import Annotated

import typer

from perfkit.additions.search import tune as tuning
from perfkit.cli.options import OutputOptions, Texts, TrainingOptions, progress, stored, until_stopped
from perfkit.recipe import pairs, parse_settings


def tune(
    training: TrainingOptions,
    output: OutputOptions,
    space: Annotated[
        Texts, typer.Option(help="switch=value,value…; repeatable (default: the usual switches)")
    ] = None,
    memory: Annotated[float | None, typer.Option(help="cap in GB", min=0)] = None,
    budget: Annotated[float, typer.Option(help="total seconds; the first recipes always run", min=0)] = 600.0,
) -> None:
    """Finds the recipe with the most samples/s under a memory cap that still trains the same."""
    plan = training.plan()
    values = {}
    for name, text in pairs(space, "space", "switch=value,value, such as workers=0,2,4"):
        values[name] = [parse_settings([f"{name}={value}"])[name] for value in text.split(",")]
    cap = None if memory is None else int(memory * 1e9)
    typer.echo(f"tuning: about {budget:.0f} s", err=True)
    with stored() as store:
        with progress() as follow:
            study = partial(tuning.tune, plan, values or None, cap, budget, follow, store)
            result, verdict = until_stopped(follow, study)
        output.deliver("the fastest recipe", result.sections(), result, verdict=verdict)
