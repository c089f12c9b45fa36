"""`perfkit parity`: checks whether a recipe trains the same as the baseline."""

from typing import Annotated

import typer

from perfkit.additions.parity import study
from perfkit.cli.options import OutputOptions, TrainingOptions, progress
from perfkit.show import tables
from perfkit.studies.compare import candidate


def parity(
    what: Annotated[str, typer.Argument(metavar="STAGE|RECIPE", help="a stage, or workers=2,amp=bf16")],
    training: TrainingOptions,
    output: OutputOptions,
    steps: Annotated[int, typer.Option(min=2, max=200, help="number of steps that each side trains")] = 4,
) -> None:
    """Checks whether a recipe still trains the same: losses and outputs against float64, and every switch."""
    plan = training.plan()
    side = candidate(what, plan)
    with progress() as follow:
        recipe = plan.source().baseline().replace(**side.changes)
        result = study.parity(plan, side.title, recipe, steps, progress=follow)
    output.deliver(f"parity of {side.title}", tables.parity(result), result, verdict=0 if result.ok else 1)
