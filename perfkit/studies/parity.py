"""Proof that a recipe still trains the same as the plain program, and that its mechanisms are on."""

from __future__ import annotations

from typing import Unpack

from perfkit.ladder import catalogue
from perfkit.recipe import Recipe, switches
from perfkit.results.parity import Check, Parity
from perfkit.results.simulated import refuse
from perfkit.studies.plan import Plan, Watch
from perfkit.studies.setup import Setup, prepare
from perfkit.worker.messages import Trained
from perfkit.worker.reports import ParityReport

Losses = dict[str, list[float]]


def parity(plan: Plan, title: str, recipe: Recipe, steps: int = 4, **watch: Unpack[Watch]) -> Parity:
    """Trains a recipe and the plain program from one seed on the same batches, and compares.

    Args:
        plan: workload, preset, device, seed.
        title: what the recipe is called.
        recipe: the candidate; it must be able to act here.
        steps: how many each side trains.
        watch: `on_progress` and `cancelled`.

    Raises:
        PerfkitError: the training failed.
    """
    refuse(plan.device, "parity", "not computed, as there are no numbers on a simulated device")
    exact = catalogue.exactness(
        recipe, Recipe(batch_size=recipe.batch_size, accumulation=recipe.accumulation)
    )
    samples = recipe.batch_size * recipe.accumulation * recipe.ranks
    other_batch = samples != plan.preset.batch_size
    with prepare(plan, **watch) as setup:
        if recipe.ranks > 1:
            checks, losses = _of_ranks(setup, recipe, steps)
            return Parity(title, "tolerance", checks, other_batch, losses)
        child = setup.child()
        report = child.ask(
            "parity", ParityReport, recipe=recipe.to_dict(), exactness=exact, seed=plan.seed, steps=steps
        )
        _, trained = setup.train(recipe, loss_steps=2, child=child)
        return Parity(title, exact, [*report.checks, _mechanisms(trained)], other_batch, report.losses)


def _of_ranks(setup: Setup, recipe: Recipe, steps: int) -> tuple[list[Check], Losses]:
    """Ranks with a batch each must have the losses of one rank with all of their batches."""
    idle = {name: switch.default for name, switch in switches().items() if switch.idle_when == ("ranks", 1)}
    batch_size = recipe.batch_size * recipe.ranks
    alone = recipe.replace(**idle, no_sync=False, ranks=1, batch_size=batch_size)
    child, reference = setup.train(alone, loss_steps=steps)
    setup.stop(child)
    _, trained = setup.train(recipe, loss_steps=steps)
    rounding = 1e-4 if recipe.amp == "off" else 2e-2
    pairs = zip(trained.losses, reference.losses, strict=True)
    difference = max(abs(a - b) / max(abs(b), 1.0) for a, b in pairs)
    sizes = f"{recipe.ranks} x {recipe.batch_size} and 1 x {alone.batch_size}"
    evidence = f"losses of {sizes} differ by at most {difference:.1g}"
    if difference > rounding and trained.batch_norm:
        evidence += ": batch normalisation sees each rank's own batch (nn.SyncBatchNorm would see all)"
    losses = {"candidate": trained.losses, "float32": reference.losses, "float64": []}
    return [Check("losses", difference <= rounding, evidence), _mechanisms(trained)], losses


def _mechanisms(trained: Trained) -> Check:
    off = [f"{proof.switch}: {proof.evidence}" for proof in trained.mechanisms if not proof.ok]
    proven = f"{len(trained.mechanisms)} switches proven by the built objects"
    return Check("mechanisms", not off, "; ".join(off) or proven)
