"""Recipes made at random, for properties that hold for all of them."""

from hypothesis import strategies as st

from perfkit.recipe import Recipe, switches


def values(switch):
    """Every value that a switch allows."""
    if switch.kind is bool:
        return st.booleans()
    return st.integers(switch.low, switch.high) if switch.kind is int else st.sampled_from(switch.choices)


recipes = st.builds(Recipe, **{name: values(switch) for name, switch in switches().items()})
