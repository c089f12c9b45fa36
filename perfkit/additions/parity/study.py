"""Whether a recipe trains as the plain program does."""

from perfkit.errors import InvalidValue
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import Exactness
from perfkit.recipe import Recipe
from perfkit.results.parity import Check, Parity
from perfkit.rules import applicable, joined
from perfkit.studies.here import ThisMachine
from perfkit.studies.sources import Plan, Progress, opened
from perfkit.worker.messages import ParityReport


def parity(
    plan: Plan, title: str, recipe: Recipe, steps: int = 4, progress: Progress | None = None
) -> Parity:
    """Trains a recipe and the plain program, some steps of each, from one seed on the same batches."""
    with opened(plan, progress or Progress(), "parity") as source:
        assert isinstance(source, ThisMachine), "others refuse it"
        recipe, refused = applicable(recipe, source.target)
        if refused:
            raise InvalidValue(f"{title} cannot be checked here: {joined(refused)}")
        if recipe.ranks > 1:
            exactness: Exactness = "tolerance"
            report = _beside_one_rank(source, recipe, steps)
        else:
            plain = Recipe(batch_size=recipe.batch_size, accumulation=recipe.accumulation)
            exactness = catalogue.exactness(recipe, plain, plan.subject.device)
            child = source.fresh_child(recipe)
            how = {"exactness": exactness, "seed": plan.subject.seed, "steps": steps}
            report = child.ask("perfkit.additions.parity.check:check", recipe=recipe, **how)
    off = [f"{proof.name}: {proof.evidence}" for proof in report.mechanisms if not proof.ok]
    proven = f"{len(report.mechanisms)} switches proven by the built objects"
    mechanisms = Check("mechanisms", not off, "; ".join(off) or proven)
    samples = recipe.batch_size * recipe.accumulation * recipe.ranks
    is_other_batch = samples != plan.subject.size.batch_size
    return Parity(title, exactness, [*report.checks, mechanisms], is_other_batch, report.losses)


def _beside_one_rank(source: ThisMachine, recipe: Recipe, steps: int) -> ParityReport:
    """Ranks with a batch each must have the losses of one rank with all of their batches."""
    batch_size = recipe.batch_size * recipe.ranks
    child, plain = source.train(recipe.replace(ranks=1, batch_size=batch_size), steps)
    child.stop()
    _, trained = source.train(recipe, steps)
    rounding = 1e-4 if recipe.amp == "off" else 2e-2
    pairs = zip(trained.losses, plain.losses, strict=True)
    difference = max(abs(a - b) / max(abs(b), 1.0) for a, b in pairs)
    evidence = f"{recipe.ranks} x {recipe.batch_size} and 1 x {batch_size}: at most {difference:.1g} apart"
    if difference > rounding:
        evidence += ". Batch normalisation, if any, sees each rank's own batch; nn.SyncBatchNorm sees all"
    losses = {"candidate": trained.losses, "float32": plain.losses, "float64": list[float]()}
    check = Check("losses", difference <= rounding, evidence)
    return ParityReport([check], losses, trained.mechanisms)
