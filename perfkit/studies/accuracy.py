"""How good the simulation is: the model's errors on published figures, and the article's ladder predicted."""

from __future__ import annotations

from typing import Unpack

from perfkit.results.run import Run
from perfkit.simulate import anchors, article
from perfkit.simulate.anchors import Anchors
from perfkit.simulate.constants import constants
from perfkit.studies.ladder import measure_ladder
from perfkit.studies.plan import Watch, plan


def accuracy(**watch: Unpack[Watch]) -> tuple[Anchors | None, str, list[Run]]:
    """Published figures with predictions, the digest of the constants in use, and the article's ladder.

    Args:
        watch: `on_progress`, called often, and `cancelled`, an event; see `Watch`.

    Raises:
        PerfkitError: the ladder cannot be planned here.
    """
    where = plan(article.WORKLOAD, "paper", device=f"sim:{article.GPU}", host="article")
    return anchors.load(), constants().digest, measure_ladder(where, **watch)
