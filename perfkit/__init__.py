"""perfkit: a training script, a set of switches, and a measured, honest difference.

Public names are loaded on first use, so that `import perfkit` is fast and does not import torch. Their types
are in `__init__.pyi`.
"""

from typing import Any

from perfkit import lookup, registry

__version__ = "0.1.0"

_CORE = {
    "Comparison": "perfkit.results.comparison:Comparison",
    "PerfkitError": "perfkit.errors:PerfkitError",
    "Plan": "perfkit.studies.sources:Plan",
    "Progress": "perfkit.studies.sources:Progress",
    "Recipe": "perfkit.recipe:Recipe",
    "Run": "perfkit.results.run:Run",
    "RunStore": "perfkit.results.store:RunStore",
    "Stopped": "perfkit.studies.job:Stopped",
    "climb": "perfkit.studies.climb:climb",
    "compare": "perfkit.studies.compare:compare",
    "plan": "perfkit.studies.planning:plan",
}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    reference = (registry.table("PUBLIC") | _CORE).get(name)
    if reference is None:
        raise AttributeError(f"module 'perfkit' has no attribute '{name}'")
    return lookup.load(reference)


def __dir__() -> list[str]:
    return sorted({"__version__", *_CORE, *registry.table("PUBLIC")})
