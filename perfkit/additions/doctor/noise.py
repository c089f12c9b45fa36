"""How far apart equal runs come out on this machine."""

from perfkit.results import stats
from perfkit.results.run import Comparison
from perfkit.results.store import RunStore
from perfkit.studies.compare import Candidate, compare
from perfkit.studies.sources import Plan, Progress


def measure_noise(
    plan: Plan,
    store: RunStore,
    pairs: int = 10,
    budget_s: float = 30.0,
    progress: Progress | None = None,
) -> Comparison:
    """Compares a recipe with itself, in fresh processes each time, because equal processes differ too.

    What they differ by, beyond the scatter of their rounds, becomes the device's A/A noise in the store. More
    rounds separate the two better. The budget of a pair is always spent: if it ended as soon as its rounds
    happen to lie close together, their scatter would be attributed to the processes. Stopped by a person, it
    gives and keeps the pairs until then.
    """
    progress = progress or Progress()
    plan.source(plan, progress).require("A/A noise")
    same = Candidate("A"), Candidate("A again")
    result = compare(*same, plan, budget_s * pairs, 0.0, pairs, progress=progress, store=store)
    sides = [pair.rates for pair in result.pairing.pairs]
    store.add_noise(plan.device, [stats.aa_pair(*rates) for rates in sides if len(rates[0]) > 1])
    return result
