"""Measures how much equal runs differ on this machine."""

from perfkit.results import Comparison, RunStore, aa_pairs
from perfkit.studies.compare import Candidate, compare_candidates
from perfkit.studies.sources import Plan, Progress, Study


def measure_noise(
    plan: Plan, store: RunStore, budget_s: float = 300.0, progress: Progress | None = None
) -> Comparison:
    """Compares a recipe with itself, in new processes each time, because equal processes differ, too.

    Their difference beyond the scatter of their rounds becomes the device's A/A noise in the store. The whole
    budget is always spent. If measuring ended as soon as the rounds happened to be close together, their
    scatter would be attributed to the processes. If the user stops it, what was measured until then is kept.
    """
    plan.source().require(Study.NOISE)
    same = Candidate("A"), Candidate("A again")
    result = compare_candidates(*same, plan.until(budget_s, precision=0.0), progress=progress, store=store)
    store.add_noise(plan.subject.device, "default", False, aa_pairs(result.pairing))
    return result
