"""How far apart equal runs come out on this machine."""

from perfkit.results import Comparison, RunStore, aa_pairs
from perfkit.studies.compare import Candidate, compare
from perfkit.studies.sources import Plan, Progress, Study


def measure_noise(
    plan: Plan, store: RunStore, budget_s: float = 300.0, progress: Progress | None = None
) -> Comparison:
    """Compares a recipe with itself, in fresh processes each time, because equal processes differ too.

    What they differ by, beyond the scatter of their rounds, becomes the device's A/A noise in the store. The
    budget is always spent: if it ended as soon as the rounds happen to lie close together, their scatter
    would be attributed to the processes. Stopped by a person, it keeps what was measured until then.
    """
    plan.source(progress).require(Study.NOISE)
    same = Candidate("A"), Candidate("A again")
    result = compare(*same, plan.until(budget_s, precision=0.0), progress=progress, store=store)
    store.add_noise(plan.subject.device, "default", False, aa_pairs(result.pairing))
    return result
