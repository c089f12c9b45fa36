"""perfkit: a training script, a set of switches, and a measured, honest difference.

The public names are loaded when they are first used, so that `import perfkit` is quick and brings no torch.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Recipe": "perfkit.recipe",
    "Run": "perfkit.results.run",
    "RunStore": "perfkit.results.store",
    "PerfkitError": "perfkit.errors",
    "plan": "perfkit.studies.sources",
    "profile": "perfkit.trace.profile",
    "detect_syncs": "perfkit.worker.syncs",
    "climb": "perfkit.studies.rungs",
    "html": "perfkit.show.html:session",
}

_JUPYTER = {"load_ipython_extension": "perfkit.scripts.panel"}
"""What `%load_ext perfkit` calls."""

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    place = (_PUBLIC | _JUPYTER).get(name)
    if place is None:
        raise AttributeError(f"module 'perfkit' has no attribute '{name}'")
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute or name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
