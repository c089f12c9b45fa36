"""`perfkit export` and `perfkit diff`: the training script of a recipe, and what a stage changes in it."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from perfkit import export as exports
from perfkit.cli.options import Out, RecipeOptions, StageName, TrainingOptions, check_writable, write
from perfkit.studies import staging


def export(
    training: RecipeOptions,
    stage: StageName = None,
    steps: Annotated[int, typer.Option(min=1, help="number of steps that the script trains")] = 8,
    out: Out = None,
) -> None:
    """Writes the standalone training script of a recipe; it does not need perfkit."""
    check_writable(out)
    plan = training.plan([stage or "baseline"]).trying(below=True)
    source = staging.loaded(plan)
    recipe = staging.acting(source).recipe
    subject = plan.subject
    options = source.description.options
    text = exports.script(recipe, subject.workload, options, subject.device, subject.seed, steps)
    write(out or Path("-"), text)


def diff(stage: Annotated[str, typer.Argument(help="such as amp")], training: TrainingOptions) -> None:
    """Shows what a stage changes in the training script: here, or on a GPU if it cannot act here."""
    title, text = staging.stage_diff(staging.loaded(training.plan([stage]).trying(below=True)))
    sys.stdout.write(f"# {title}\n{text}")
