"""`perfkit diff`: what a stage changes in the training script."""

import sys
from typing import Annotated

import typer

from perfkit.cli.options import TrainingOptions
from perfkit.studies import staging


def diff(stage: Annotated[str, typer.Argument(help="such as amp")], training: TrainingOptions) -> None:
    """Shows what a stage changes in the training script: here, or on a GPU if it cannot act here."""
    title, text = staging.stage_diff(staging.described(training.plan([stage]).trying(below=True), load=True))
    sys.stdout.write(f"# {title}\n{text}")
