"""How good the simulation is: the model's errors on published figures, and the article's ladder predicted."""

from __future__ import annotations

import contextlib
from typing import Unpack

from perfkit.errors import PerfkitError
from perfkit.results import recordings
from perfkit.results.run import Run
from perfkit.simulate import anchors, article
from perfkit.simulate.anchors import Anchors
from perfkit.simulate.constants import constants
from perfkit.studies.ladder import measure_ladder
from perfkit.studies.plan import Watch, plan


def accuracy(**watch: Unpack[Watch]) -> tuple[Anchors, list[Run]]:
    """Published figures with predictions, and the article's ladder.

    The ladder is that of the recording if there is one of today's model: it would come out the same.

    Args:
        watch: `on_progress`, called often, and `cancelled`, an event; see `Watch`.

    Raises:
        PerfkitError: the ladder cannot be planned here.
    """
    if recorded := _recorded(constants().digest):
        return anchors.load(), recorded
    where = plan(article.WORKLOAD, "paper", device=f"sim:{article.GPU}", host="article")
    return anchors.load(), measure_ladder(where, **watch)


def _recorded(digest: str) -> list[Run]:
    with contextlib.suppress(PerfkitError):
        runs = recordings.find(f"sim-{article.GPU}").runs
        if all(run.simulated and run.simulated.constants == digest for run in runs):
            return runs
    return []
