from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfkit.errors import InvalidValue
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import exactness
from perfkit.ladder.presets import Sizing
from perfkit.recipe import Recipe

SIZES = Sizing(workers=3, batch_size=8, large_batch=16, largest_batch=32, amp="bf16", threads=2)
CARD = """+++
title = "mine"
question = "Why?"
settings = { workers = "$workers" }
documentation = "https://example.org"
exactness = "bitwise"
bottleneck = "data"
position = 0
published = { figure = "37 ms per step", machine = "V100", derived = "865 samples/s" }
+++

## How it works

Text.

## When it applies

## When it does not help

## What it costs

## How it is verified
"""


def card(folder: Path, text: str = CARD, name: str = "baseline") -> Path:
    path = folder / f"{name}.md"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_card_is_read_whole(tmp_path: Path) -> None:
    optimization = catalogue.read(card(tmp_path))
    assert (optimization.name, optimization.title, optimization.switch) == ("baseline", "mine", "workers")
    assert str(optimization.published) == "37 ms per step (V100; derived from it: 865 samples/s)"
    text = optimization.card()
    assert text.startswith("**Mine: Why?**\n\n*Exactness: bitwise · bottleneck: data · ")
    assert "(https://example.org)" in text
    assert "<details><summary>How it works</summary>\n\nText.\n\n</details>" in text
    assert text.endswith("37 ms per step (V100; derived from it: 865 samples/s).\n\n</details>\n")
    assert "+++" not in text


def test_a_size_stands_for_its_number_on_the_machine(tmp_path: Path) -> None:
    optimization = catalogue.read(card(tmp_path))
    assert optimization.changes(SIZES) == {"workers": 3}


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("+++\n", "", "does not begin with front matter"),
        ('title = "mine"', "title = mine", "Invalid value"),
        ('title = "mine"\n', "", "missing required field `title`"),
        ("question", "questoin", "unknown field `questoin`"),
        ("https", "http", "matching regex"),
        ('"data"', '"dada"', "Invalid enum value 'dada' - at `$.bottleneck`"),
        ('"$workers"', '"$wrokers"', "no attribute 'wrokers'"),
        ('"$workers"', "-1", "'workers' was given '-1'"),
        (
            '{ workers = "$workers" }',
            "{}",
            "Expected `object` of length >= 1",
        ),
        ("workers =", "wokers =", "unknown switch 'wokers'. Did you mean 'workers'?"),
        ("## When it applies\n", "", "its sections are"),
    ],
)
def test_a_bad_card_is_one_clear_message(tmp_path: Path, old: str, new: str, words: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        catalogue.read(card(tmp_path, CARD.replace(old, new)))
    assert words in str(caught.value)
    assert "the card baseline.md cannot be read" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("positions", [[1], [0, 2], [0, 0]])
def test_positions_count_up_from_the_baseline(tmp_path: Path, positions: list[int]) -> None:
    for number, position in enumerate(positions):
        name = f"card_{number}" if number else "baseline"
        card(tmp_path, CARD.replace("position = 0", f"position = {position}"), name)
    with pytest.raises(InvalidValue, match="the ladder's positions are"):
        catalogue.read_all(tmp_path)


def test_the_ladder_comes_first_whatever_the_files_are_called(tmp_path: Path) -> None:
    card(tmp_path)
    card(tmp_path, CARD.replace("position = 0", "position = 1"), "zz")
    card(tmp_path, CARD.replace("position = 0", ""), "aa")
    assert list(catalogue.read_all(tmp_path)) == ["baseline", "zz", "aa"]


def test_an_unknown_optimization_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InvalidValue, match="unknown stage 'pining'. Did you mean 'pinning'"):
        catalogue.optimization("pining")


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        (Recipe(), "bitwise"),
        (Recipe(workers=2, zero_grad_set_to_none=False), "bitwise"),
        (Recipe(workers=2, amp="bf16"), "tolerance"),
        (Recipe(amp="bf16", accumulation=2), "changes training"),
        (Recipe(batch_size=16, accumulation=2), "tolerance"),
        (Recipe(ranks=2), "changes training"),
        (Recipe(ranks=2, batch_size=16), "tolerance"),
    ],
)
def test_a_recipe_has_the_loosest_class_of_its_changes(recipe: Recipe, expected: str) -> None:
    assert exactness(recipe) == expected


def test_exactness_is_judged_against_a_baseline() -> None:
    two = Recipe(ranks=2)
    assert exactness(two.replace(no_sync=True), two) == "tolerance"
    assert exactness(Recipe(batch_size=8), Recipe(batch_size=8)) == "bitwise"


def test_reading_the_cards_loads_no_torch() -> None:
    script = "import sys, perfkit.ladder.stages; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
