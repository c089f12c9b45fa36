"""Switches: declared once, checked however they are given, the same as text and as data."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe, allowed, parse_settings, switches


def values(switch):
    """Every value that a switch allows."""
    if switch.kind is bool:
        return st.booleans()
    return st.integers(switch.low, switch.high) if switch.kind is int else st.sampled_from(switch.choices)


recipes = st.builds(Recipe, **{name: values(switch) for name, switch in switches().items()})


@given(recipes)
def test_a_recipe_survives_json_and_the_settings_of_a_shell(recipe):
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    texts = ["workers=9", *(f" {name} = {value}" for name, value in recipe.to_dict().items())]
    assert Recipe().replace(**parse_settings(texts)) == recipe
    described = [] if recipe == Recipe() else recipe.describe().split(", ")
    assert Recipe().replace(**parse_settings(described)) == recipe


@given(recipes, recipes)
def test_a_difference_leads_from_one_recipe_to_the_other(one, other):
    difference = one.diff(other)
    assert (difference == {}) == (one == other)
    assert one.replace(**{name: there for name, (_, there) in difference.items()}) == other
    assert other.diff(one) == {name: (there, here) for name, (here, there) in difference.items()}


def test_the_baseline_sets_nothing_in_the_environment():
    assert Recipe().environment() == {}
    early = {"OMP_WAIT_POLICY": "PASSIVE", "MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
    assert Recipe(wait_policy="passive", allocator="keep").environment() == early


def test_truth_may_be_written_in_many_ways():
    for word, truth in {"ON": True, "yes": True, 1: True, "False": False, "no": False, "0": False}.items():
        assert switches()["compile"].parse(word) is truth


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("compile", "maybe", "'compile' was given 'maybe'. Allowed: on, off"),
        ("workers", "many", "'workers' was given 'many'. Allowed: a whole number from 0 to 256"),
        ("workers", 1.5, "a whole number"),
        ("workers", True, "'workers' was given 'True'"),
        ("batch_size", "9" * 5000, "a whole number"),
        ("amp", "bfloat16", "'amp' was given 'bfloat16'. Allowed: off, bf16, fp16"),
        ("amp", ["bf16"], "Allowed: off, bf16, fp16"),
    ],
)
def test_a_value_that_is_not_allowed_is_one_clear_message(name, value, words):
    for make in (lambda: Recipe(**{name: value}), lambda: Recipe().replace(**{name: value})):
        with pytest.raises(InvalidValue) as caught:
            make()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    assert allowed({name: value, "no_such": 1, "wait_policy": "passive"}) == {"wait_policy": "passive"}


def test_values_that_are_allowed_are_those_that_their_switches_take():
    """A recording's "4" was kept as a text, which is not equal to 4."""
    assert allowed({"workers": "4", "amp": "BF16", "compile": "on"}) == {
        "workers": 4,
        "amp": "bf16",
        "compile": True,
    }


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["workers"], "cannot read the setting 'workers'. Write switch=value"),
        (["worker=2"], "unknown switch 'worker'. Did you mean 'workers'?"),
        (["workers=2=3"], "'workers' was given '2=3'"),
        (["replace=2"], "unknown switch 'replace'"),
    ],
)
def test_settings_that_cannot_be_read(texts, words):
    with pytest.raises(InvalidValue) as caught:
        parse_settings(texts)
    assert words in str(caught.value)
