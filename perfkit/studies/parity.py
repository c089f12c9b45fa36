"""Proof that a recipe still trains the same as the plain program, and that its mechanisms are on."""

from __future__ import annotations

import contextlib
import threading

from msgspec import structs

from perfkit.ladder import catalogue
from perfkit.process.child import Child, Progress
from perfkit.process.lock import device_lock
from perfkit.process.ranks import start_ranks
from perfkit.program.recipe import Recipe, switches
from perfkit.results.parity import Check, Parity
from perfkit.studies import engine
from perfkit.worker.messages import CheckParity, Train


def parity(
    plan: engine.Plan, title: str, recipe: Recipe, steps: int = 4,
    on_progress: Progress = lambda phase, fraction: None, cancelled: threading.Event | None = None,
) -> Parity:  # fmt: skip
    """Trains a recipe and the plain program from one seed on the same batches, and compares.

    Args:
        plan: workload, preset, device, seed.
        title: what the recipe is called.
        recipe: the candidate; it must be able to act here.
        steps: how many each side trains.
        on_progress: told the phase and its fraction.
        cancelled: set it from any thread to stop.

    Raises:
        PerfkitError: the training failed.
    """
    exact = catalogue.exactness(
        recipe, Recipe(batch_size=recipe.batch_size, accumulation=recipe.accumulation)
    )
    samples = recipe.batch_size * recipe.accumulation * recipe.ranks
    other_batch = samples != plan.preset.batch_size
    data = recipe.to_dict()
    with device_lock(plan.device, cancelled):
        child = Child(on_progress, cancelled)
        try:
            child.ask(plan.loads())
            if recipe.ranks > 1:
                return _of_ranks(plan, title, recipe, steps, child, other_batch)
            found = child.ask(CheckParity(recipe=data, exactness=exact, seed=plan.seed, steps=steps))
            ready = child.ask(
                Train(recipe=data, seed=plan.seed, loss_steps=2, warmup_s=0, started=child.started)
            )
        finally:
            child.stop()
    checks = list(found.checks)
    off = [f"{m.switch}: {m.evidence}" for m in ready.mechanisms if not m.ok]
    proven = f"{len(ready.mechanisms)} switches proven by the built objects"
    checks.append(Check("mechanisms", not off, "; ".join(off) or proven))
    return Parity(title, exact, checks, other_batch, found.losses)


def _of_ranks(
    plan: engine.Plan, title: str, recipe: Recipe, steps: int, first: Child, other_batch: bool
) -> Parity:  # fmt: skip
    """Ranks with a batch each must have the losses of one rank with all of their batches."""
    between = {
        name: switch.default for name, switch in switches().items() if switch.idle_when == ("ranks", 1)
    }
    batch_size = recipe.batch_size * recipe.ranks
    alone = recipe.replace(**between, no_sync=False, ranks=1, batch_size=batch_size)
    train = Train(recipe=alone.to_dict(), seed=plan.seed, loss_steps=steps, warmup_s=0, started=first.started)
    with contextlib.ExitStack() as ends:
        one = first.sibling()
        ends.callback(one.stop)
        one.ask(plan.loads())
        reference = one.ask(train)
        many = start_ranks(first, plan.loads(), recipe.ranks, plan.nodes)
        ends.callback(many.stop)
        ready = many.ask(structs.replace(train, recipe=recipe.to_dict()))
    rounding = 1e-4 if recipe.amp == recipe.gradient_compression == "off" else 2e-2
    apart = max(abs(a - b) / max(abs(b), 1.0) for a, b in zip(ready.losses, reference.losses, strict=True))
    sizes = f"{recipe.ranks} x {recipe.batch_size} and 1 x {alone.batch_size}"
    said = f"losses of {sizes} differ by at most {apart:.1g}"
    if apart > rounding and ready.batch_norm:
        said += ": batch normalisation sees each rank's own batch (nn.SyncBatchNorm would see all)"
    off = [f"{m.switch}: {m.evidence}" for m in ready.mechanisms if not m.ok]
    proven = f"{len(ready.mechanisms)} switches proven by the built objects"
    checks = [
        Check("losses", apart <= rounding, said),
        Check("mechanisms", not off, "; ".join(off) or proven),
    ]
    losses = {"candidate": ready.losses, "float32": reference.losses, "float64": []}
    return Parity(title, "tolerance", checks, other_batch, losses)
