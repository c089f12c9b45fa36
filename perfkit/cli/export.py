"""`perfkit export`: writes the training script of a recipe."""

from pathlib import Path
from typing import Annotated

import typer

from perfkit import export as exports
from perfkit.cli.options import Out, RecipeOptions, StageName, check_writable, write
from perfkit.studies import staging


def export(
    training: RecipeOptions,
    stage: StageName = None,
    steps: Annotated[int, typer.Option(min=1, help="steps that the script trains")] = 8,
    out: Out = None,
) -> None:
    """Writes the standalone training script of a recipe; it does not need perfkit."""
    check_writable(out)
    plan = training.plan([stage or "baseline"]).trying(below=True)
    source = staging.described(plan, load=True)
    recipe = staging.acting(source).recipe
    options = source.description.options
    text = exports.script(recipe, plan.subject.workload, options, plan.subject.device, training.seed, steps)
    write(out or Path("-"), text)
