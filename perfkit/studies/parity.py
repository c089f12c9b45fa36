"""Proof that a recipe still trains the same as the plain program, and that its mechanisms are on."""

from perfkit.recipe import Recipe
from perfkit.results.parity import Parity
from perfkit.studies.progress import Progress
from perfkit.studies.sources import PARITY_STEPS, Plan, opened


def parity(
    plan: Plan, title: str, recipe: Recipe, steps: int = PARITY_STEPS, progress: Progress | None = None
) -> Parity:
    """Trains a recipe and the plain program from one seed on the same batches, and compares.

    Args:
        plan: workload, preset, device, seed.
        title: what the recipe is called.
        recipe: the candidate; it must be able to act here.
        steps: how many each side trains.
        progress: follows and stops it.

    Raises:
        NotHere: the device computes no numbers.
        PerfkitError: the training failed.
    """
    with opened(plan, progress or Progress(), "parity") as source:
        return source.parity(title, recipe, steps)
