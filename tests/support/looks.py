"""What the tests ask of a training that no command asks."""

from typing import Unpack

from perfkit.additions.inside import SYNCS, SyncReport
from perfkit.additions.shared.looking import prepared
from perfkit.studies.planning import Where


def syncs(workload: str, recipe: str | None = None, steps: int = 4, **where: Unpack[Where]) -> SyncReport:
    """Copies and waits between host and device in a training's steps; arguments as for `prepared`."""
    with prepared(workload, recipe, where) as (session, used):
        report: SyncReport = session.ask_training(used, SYNCS, warm=False, steps=steps)
        return report
