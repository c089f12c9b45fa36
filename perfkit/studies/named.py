"""`perfkit.compare`: two recipes by their names."""

from perfkit.results.comparison import Comparison
from perfkit.results.store import RunStore
from perfkit.studies import planning
from perfkit.studies.compare import candidate
from perfkit.studies.compare import compare as compare_candidates
from perfkit.studies.sources import Plan, Progress


def compare(a: str, b: str, plan: Plan | None = None, progress: Progress | None = None) -> Comparison:
    """Measures how many times as fast B is as A, stages or settings (`workers=2,amp=bf16`); stores both."""
    plan = (plan or planning.plan()).until()
    sides = (candidate(a, plan), candidate(b, plan))
    return compare_candidates(*sides, plan, progress=progress, store=RunStore())
