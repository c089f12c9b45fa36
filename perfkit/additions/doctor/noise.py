"""Measures how much equal runs differ on this machine."""

from perfkit.results import Comparison, RunStore, aa_pairs, stats
from perfkit.show import units
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
    plan = plan.until(budget_s, precision=0.0)
    progress = progress or Progress()
    try:
        return compare_candidates(*same, plan, progress=progress, store=store)
    finally:  # after Ctrl-C as well
        if progress.found:
            store.add_aa_pairs(plan.subject.device, "default", False, aa_pairs(progress.found.pairing))


def told(device: str, store: RunStore, measured: Comparison) -> str:
    """The noise of a device, and from how many pairs of equal processes it is known."""
    spread = store.spread(device)
    usual = stats.usual_spread(device, workers=False)
    known = f"{units.plural(round(spread.freedom - usual.freedom), 'pair')} of equal processes"
    now = f"{len(aa_pairs(measured.pairing))} of the {measured.incarnations} measured now"
    noise = f"A/A noise of {device}: {spread.sd:.2%} (standard deviation), from {known}, {now}"
    return f"{noise}; what is usual elsewhere counts like {usual.freedom} more"
