"""Attribution from made-up values whose answer is known in closed form."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.search import attribute
from perfkit.search.attribute import Names, Value, conclude

LOG2 = math.log(2)


def every_set(players: str) -> list[Names]:
    return [frozenset(c) for n in range(1, len(players) + 1) for c in itertools.combinations(players, n)]


def orders(players: str) -> list[tuple[str, ...]]:
    return list(itertools.permutations(players))


def test_independent_gains_are_found_whatever_the_order() -> None:
    worth = {"a": 2.0, "b": 1.5, "c": 1.0}
    values = {one: (sum(math.log(worth[n]) for n in one), 0.0) for one in every_set("abc")}
    found = conclude("abc", values, orders("abc"))
    assert found.exact
    for effect in found.effects:
        for value in (effect.alone, effect.last, effect.stepwise, effect.shapley, effect.low, effect.high):
            assert value == pytest.approx(worth[effect.name])
    assert all(pair.factor == pytest.approx(1) for pair in found.interactions)
    assert found.whole == pytest.approx(3.0)


def test_a_gain_that_needs_another_shows_as_an_interaction() -> None:
    """The glove game: neither alone gives anything, both together double the speed; each gets half of it."""
    values: dict[Names, Value] = {frozenset("a"): (0.0, 0.0), frozenset("b"): (0.0, 0.0)}
    values[frozenset("ab")] = (LOG2, 0.0)
    found = conclude("ab", values, orders("ab"))
    assert [e.alone for e in found.effects] == pytest.approx([1, 1])
    assert [e.last for e in found.effects] == pytest.approx([2, 2])
    assert [e.shapley for e in found.effects] == pytest.approx([math.sqrt(2)] * 2)
    assert found.interactions[0].factor == pytest.approx(2)
    assert "1.00× alone and 2.00× once the others are on" in found.sentences()[0]


@given(st.lists(st.floats(-1, 1), min_size=15, max_size=15))
def test_the_values_add_up_to_the_whole(numbers: list[float]) -> None:
    values = {one: (number, 0.0) for one, number in zip(every_set("abcd"), numbers, strict=True)}
    found = conclude("abcd", values, orders("abcd"))
    total = sum(math.log(e.shapley) for e in found.effects if e.shapley)
    assert total == pytest.approx(values[frozenset("abcd")][0], abs=1e-9)


def test_the_error_of_measurements_is_in_the_interval() -> None:
    found = conclude("a", {frozenset("a"): (LOG2, 0.1)}, [("a",)])
    effect = found.effects[0]
    assert effect.low == pytest.approx(2 * math.exp(-0.196))
    assert effect.high == pytest.approx(2 * math.exp(0.196))


def test_what_was_not_measured_is_none_and_the_rest_still_stands() -> None:
    values: dict[Names, Value] = {frozenset("a"): (LOG2, 0.0)}
    found = conclude("ab", values, orders("ab"), complete=False)
    a, b = found.effects
    assert (a.alone, a.last, a.shapley) == (pytest.approx(2), None, None)
    assert (b.alone, b.last, b.shapley) == (None, None, None)
    assert found.whole is None


def test_sampled_orders_come_with_their_reverse_and_measure_the_telling_sets_first() -> None:
    players = "abcdef"
    chosen = attribute._orders(players, 4, seed=0)
    assert len(chosen) == 4
    assert chosen[1] == chosen[0][::-1]
    first = list(dict.fromkeys(attribute._sets(players, chosen)))[:13]
    assert first[0] == frozenset(players)
    assert set(first[1:7]) == {frozenset(p) for p in players}
    assert all(len(one) == 5 for one in first[7:])
