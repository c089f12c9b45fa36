"""What the tests ask of a training that no command asks."""

from perfkit.additions.inside import SYNCS
from perfkit.additions.looking import prepared


def syncs(workload=None, recipe=None, steps=4, **where):
    """Copies and waits between host and device in a training's steps; arguments as for `prepared`."""
    with prepared(workload, recipe, where, study="a look at syncs") as (source, used):
        return source.look(used, SYNCS, warm=False, steps=steps)
