"""`perfkit.compare`: two recipes by their names."""

from perfkit.results import Comparison, warning_store
from perfkit.studies import compare as comparing
from perfkit.studies import planning
from perfkit.studies.sources import Plan, Progress


def compare(a: str, b: str, plan: Plan | None = None, progress: Progress | None = None) -> Comparison:
    """Measures how many times as fast B is as A, stages or settings (`workers=2,amp=bf16`); stores both.

    Without a `plan`, it measures on this machine for as long as `perfkit compare` does.
    """
    plan = plan or planning.plan().until()
    sides = (comparing.candidate(a, plan), comparing.candidate(b, plan))
    with warning_store() as store:
        return comparing.compare_candidates(*sides, plan, progress=progress, store=store)
