import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given

from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe, parse_settings, switches
from tests.support.recipes import recipes

# ---------------------------------------------------------------- declarations


def test_every_switch_is_declared_in_full() -> None:
    assert list(switches()) == [field.name for field in dataclasses.fields(Recipe)] != []
    for name, switch in switches().items():
        assert switch.name == name
        assert switch.label
        assert switch.help
        assert type(switch.default) is switch.kind
        assert switch.needs in ("", "cuda", "workload")
        assert all(
            switch.parse(level) == level for level in (switch.default, *switch.levels, *switch.choices)
        )
        if switch.idle_when:
            assert switch.idle_when[0] in switches()


def test_the_baseline_is_called_so() -> None:
    assert Recipe().describe() == "baseline"


# ---------------------------------------------------------------- to text and back


@given(recipes)
def test_a_recipe_survives_json(recipe: Recipe) -> None:
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe
    assert hash(again) == hash(recipe)
    assert again.digest() == recipe.digest()
    assert list(recipe.to_dict()) == list(switches())


@given(recipes)
def test_settings_as_a_shell_gives_them_make_the_same_recipe(recipe: Recipe) -> None:
    texts = [f"{name}={value}" for name, value in recipe.to_dict().items()]
    assert Recipe(**parse_settings(texts)) == recipe  # type: ignore[arg-type]
    told = "" if recipe == Recipe() else recipe.describe()
    assert Recipe(**parse_settings(told.split(", ") if told else [])) == recipe  # type: ignore[arg-type]


@given(recipes, recipes)
def test_digests_differ_exactly_where_recipes_do(one: Recipe, other: Recipe) -> None:
    assert (one.digest() == other.digest()) == (one == other) == (one.diff(other) == {})


@given(recipes, recipes)
def test_a_difference_leads_from_one_recipe_to_the_other(one: Recipe, other: Recipe) -> None:
    difference = one.diff(other)
    assert one.replace(**{name: there for name, (_, there) in difference.items()}) == other
    assert other.diff(one) == {name: (there, here) for name, (here, there) in difference.items()}


def test_the_digest_is_the_same_in_every_process() -> None:
    script = "from perfkit.recipe import Recipe; print(Recipe(workers=2, amp='bf16').digest())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    digest = Recipe(workers=2, amp="bf16").digest()
    assert done.stdout.strip() == digest
    assert len(digest) == 12


def test_a_recipe_in_words_names_what_is_changed() -> None:
    assert Recipe(workers=4, compile=True, amp="bf16").describe() == "workers=4, amp=bf16, compile=true"


def test_a_recipe_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().workers = 2  # type: ignore[misc]


def test_the_baseline_sets_nothing_in_the_environment() -> None:
    assert Recipe().environment() == {}
    assert Recipe(wait_policy="passive", allocator="keep").environment() == {
        "OMP_WAIT_POLICY": "PASSIVE",
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": "-1",
    }


# ---------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("text", "value"),
    [(word, True) for word in ("true", "ON", "yes", "1", 1, True)]
    + [(word, False) for word in ("False", "off", "no", "0", 0, False)],
)
def test_truth_may_be_written_in_many_ways(text: object, value: bool) -> None:
    assert switches()["compile"].parse(text) is value


@pytest.mark.parametrize(
    ("name", "given_value", "words"),
    [
        ("compile", "maybe", "'compile' was given 'maybe'. Allowed: true, false"),
        ("compile", None, "'compile' was given 'None'"),
        ("compile", 2, "Allowed: true, false"),
        ("workers", "many", "'workers' was given 'many'. Allowed: a whole number from 0 to 256"),
        ("workers", -1, "'workers' was given '-1'"),
        ("workers", 257, "from 0 to 256"),
        ("workers", 1.5, "a whole number"),
        ("workers", True, "'workers' was given 'True'"),
        ("workers", None, "'workers' was given 'None'"),
        ("batch_size", 0, "from 1 to 65536"),
        ("batch_size", "9" * 5000, "a whole number"),
        ("amp", "bfloat16", "unknown value for 'amp' 'bfloat16'. Did you mean 'bf16'?"),
        ("amp", "", "Allowed: off, bf16, fp16"),
        ("amp", ["bf16"], "Allowed: off, bf16, fp16"),
    ],
)
def test_a_value_that_is_not_allowed_is_one_clear_message(name: str, given_value: Any, words: str) -> None:
    for make in (lambda: Recipe(**{name: given_value}), lambda: Recipe().replace(**{name: given_value})):
        with pytest.raises(InvalidValue) as caught:
            make()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings_given", "words"),
    [
        (["workers"], "cannot read the setting 'workers'. Write switch=value"),
        (["worker=2"], "unknown switch 'worker'. Did you mean 'workers'?"),
        (["=2"], "unknown switch ''"),
        (["workers=2=3"], "'workers' was given '2=3'"),
        (["replace=2"], "unknown switch 'replace'"),
    ],
)
def test_settings_that_cannot_be_read(settings_given: list[str], words: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        parse_settings(settings_given)
    assert words in str(caught.value)


def test_settings_may_have_spaces_and_the_last_one_counts() -> None:
    assert parse_settings([" workers = 2 ", "workers=3"]) == {"workers": 3}
    assert parse_settings([]) == {}


@pytest.mark.parametrize("name", ["self", "digest", "wrkers", ""])
def test_plain_data_with_an_unknown_switch_is_refused(name: str) -> None:
    with pytest.raises(InvalidValue, match="unknown switch"):
        Recipe.from_dict({name: 1})
