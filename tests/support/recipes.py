"""Recipes made at random, for properties that hold for all of them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from perfkit.recipe import Recipe, Switch, switches


def values(switch: Switch) -> st.SearchStrategy[Any]:
    """Every value that a switch allows."""
    if switch.kind is bool:
        return st.booleans()
    return st.integers(switch.low, switch.high) if switch.kind is int else st.sampled_from(switch.choices)


recipes = st.builds(Recipe, **{name: values(switch) for name, switch in switches().items()})
