"""Two stored runs, compared as far as they can be."""

import math
from typing import Any

from perfkit.errors import InvalidValue
from perfkit.results import stats
from perfkit.results.comparison import Comparison
from perfkit.results.rounds import Pairing
from perfkit.results.run import Run
from perfkit.results.stats import Spread
from perfkit.results.store import RunStore


def compare_stored(a: Run, b: Run, store: RunStore | None = None) -> Comparison:
    """Compares two runs with a rate that were measured already: interleaved if they are of one session.

    How far equal processes of others differ is known to the `store`.
    """
    first, second = _basis(a), _basis(b)
    if differing := [name for name in first if first[name] != second[name]]:
        raise InvalidValue(
            f"the runs differ in {differing[0]}: {first[differing[0]]} and {second[differing[0]]}",
            "Choose two runs of one workload on one device of one machine",
        )
    together = next((pairing for pairing in b.pairings if pairing.against == a.id), None)
    if together is None:
        band = math.hypot(a.simulated.band, b.simulated.band) if a.simulated and b.simulated else None
        together = Pairing(
            own_samples_per_s=b.raw.block_samples_per_s,
            other_samples_per_s=a.raw.block_samples_per_s,
            disturbed=b.raw.disturbed,
            incarnations=b.raw.incarnations,
            other_disturbed=a.raw.disturbed,
            other_incarnations=a.raw.incarnations,
            against=a.id,
            role="previous",
            interleaved=False,
            spread=_spread(a, b, store),
            band=band,
        )
    return Comparison(a, b, together)


def _spread(a: Run, b: Run, store: RunStore | None) -> Spread:
    """The widest of what is known of the device and what the runs' own comparisons allowed for."""
    workers = any(run.recipe.get("workers") for run in (a, b))
    usual = stats.usual_spread(a.device, workers)
    known = [store.spread(a.device, workers=workers) if store else usual]
    known += [pairing.spread for run in (a, b) for pairing in run.pairings if pairing.spread]
    return max(known, key=lambda spread: spread.sd)


def _basis(run: Run) -> dict[str, Any]:
    """What must be the same in runs that are compared."""
    model = run.simulated
    return {
        "workload": run.workload,
        "options": run.options,
        "device": run.device,
        "machine": run.machine.get("id"),
        "simulation": model and (model.host, model.model, model.constants),
    }
