"""perfkit: a training script, a set of switches, and a measured, honest difference.

The public names are loaded when they are first used, so that `import perfkit` is quick and brings no torch.
"""

from typing import Any

from perfkit import registry

__version__ = "0.1.0"

_PUBLIC = {
    "Recipe": "perfkit.recipe:Recipe",
    "Run": "perfkit.results.run:Run",
    "RunStore": "perfkit.results.store:RunStore",
    "PerfkitError": "perfkit.errors:PerfkitError",
    "plan": "perfkit.studies.sources:plan",
    "profile": "perfkit.additions.trace.profile:profile",
    "detect_syncs": "perfkit.additions.inside.syncs:detect_syncs",
    "climb": "perfkit.studies.rungs:climb",
    "html": "perfkit.show.html:session",
}

_JUPYTER = {"load_ipython_extension": "perfkit.additions.inside.panel:load_ipython_extension"}
"""What `%load_ext perfkit` calls."""

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    place = (_PUBLIC | _JUPYTER).get(name)
    if place is None:
        raise AttributeError(f"module 'perfkit' has no attribute '{name}'")
    return registry.load(place)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
