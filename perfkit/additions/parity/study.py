"""Checks whether a recipe trains the same as the plain program."""

import msgspec

from perfkit.errors import InvalidValue
from perfkit.ladder import catalogue
from perfkit.recipe import Recipe
from perfkit.results import Check, Mechanism, Parity
from perfkit.rules import applicable, joined
from perfkit.studies.sources import Plan, Progress


class ParityReport(msgspec.Struct, frozen=True):
    """What a process has found; `mechanisms` are the recipe's."""

    checks: list[Check]
    losses: dict[str, list[float]]  # of the candidate, and of the plain program in float32 and in float64
    mechanisms: list[Mechanism]


def parity(plan: Plan, name: str, recipe: Recipe, steps: int = 4, progress: Progress | None = None) -> Parity:
    """Trains some steps of a recipe and of the plain program, from one seed on the same batches."""
    with plan.open(progress, "parity") as session:
        recipe, refused = applicable(recipe, session.source.target)
        if refused:
            raise InvalidValue(f"{name} cannot be checked here: {joined(refused)}")
        plain = Recipe(batch_size=recipe.batch_size, accumulation=recipe.accumulation)
        exactness = catalogue.exactness(recipe, plain, plan.subject.device)
        how = {"exactness": exactness, "seed": plan.subject.seed, "steps": steps}
        report: ParityReport = session.ask(recipe, "perfkit.additions.parity.check:check", **how)
    off = [f"{proof.name}: {proof.evidence}" for proof in report.mechanisms if not proof.ok]
    proven = f"{len(report.mechanisms)} switches proven by the built objects"
    mechanisms = Check("mechanisms", not off, "; ".join(off) or proven)
    is_other_batch = recipe.batch_size * recipe.accumulation != plan.subject.size.batch_size
    return Parity(name, exactness, [*report.checks, mechanisms], is_other_batch, report.losses)
