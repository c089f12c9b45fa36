"""Cards, presets, and the stages that follow from them on a machine."""

import re

import pytest

from perfkit.errors import InvalidValue
from perfkit.ladder import catalogue
from perfkit.ladder.catalogue import GROUPS, LADDER, OPTIMIZATIONS, PRESETS, TOGETHER, exactness, sizing
from perfkit.recipe import Recipe, switches
from perfkit.rules import Target
from perfkit.studies import planning

SIZES = {
    "workers": 3, "batch_size": 8, "large_batch": 16, "amp": "bf16", "threads": 2,
    "wait_policy": "default",
}  # fmt: skip
CPU = Target("cpu")
SECTIONS = ["How it works", "When it applies", "When it does not help", "What it costs", "How it is verified"]


@pytest.mark.parametrize("name", OPTIMIZATIONS)
def test_a_card_has_every_section_and_settings_that_a_recipe_takes(name):
    card = OPTIMIZATIONS[name]
    parts = re.split(r"^## (.+)$", card.prose, flags=re.MULTILINE)
    assert parts[1::2] == SECTIONS and all(map(str.strip, parts[2::2]))
    assert card.question.endswith("?")
    assert Recipe().replace(**card.changes(SIZES))


def test_the_ladder_starts_from_the_baseline_and_comes_first():
    assert list(OPTIMIZATIONS)[: len(LADDER)] == list(LADDER)
    assert LADDER[0] == "baseline" and LADDER.index("tf32") < LADDER.index("amp")


@pytest.mark.parametrize("group", GROUPS)
def test_no_two_stages_of_a_group_set_the_same_switch_or_need_one_of_the_other(group):
    """They are measured without each other, and kept together."""
    settings = [switch for name in group for switch in OPTIMIZATIONS[name].settings]
    assert len(settings) == len(set(settings)) and len(group) <= 5
    own = {OPTIMIZATIONS[name].switch for name in group}
    for name in group:
        switch = switches()[OPTIMIZATIONS[name].switch]
        assert not (switch.idle_when and switch.idle_when[0] in own)


@pytest.mark.parametrize(("name", "parts"), TOGETHER.items())
def test_a_stage_that_is_two_at_once_sets_what_they_set_and_they_share_a_group(name, parts):
    one, other = (OPTIMIZATIONS[part].settings for part in parts)
    assert OPTIMIZATIONS[name].settings == {**one, **other}
    assert any({*parts} <= {*group} for group in GROUPS) and name not in LADDER


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (LADDER[1:], [list(group) for group in GROUPS]),
        (("uint8_copy", "batch_size", "compile"), [["uint8_copy", "batch_size"], ["compile"]]),
        (("batch_size", "compile", "uint8_copy"), [["batch_size"], ["compile"], ["uint8_copy"]]),
        (("ranks", "zero_grad"), [["ranks"], ["zero_grad"]]),  # which are in no group
        (("batch_size", "batch_size"), [["batch_size"], ["batch_size"]]),
    ],
)
def test_stages_keep_their_order_and_share_rounds_with_their_neighbours_of_the_same_group(stages, expected):
    assert catalogue.groups(stages) == expected


def test_a_ladder_without_a_stage_is_refused():
    with pytest.raises(InvalidValue, match="no stage was given"):
        planning.plan(stages=[])


def test_a_card_names_its_switch_and_shows_the_official_documentation():
    card = OPTIMIZATIONS["data_loading"]
    assert card.switch == "workers" and card.changes(SIZES)["workers"] == 3
    assert f"({card.documentation})" in card.card()
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
    ],
)
def test_a_recipe_has_the_loosest_class_of_its_changes(recipe, expected):
    assert exactness(recipe, Recipe()) == expected
    assert (exactness(recipe, recipe), exactness(recipe, recipe, "cuda")) == ("bitwise", "tolerance")


@pytest.mark.parametrize(("device", "name"), [("cuda", "paper"), ("mps", "quick"), ("cpu", "quick")])
def test_only_cuda_gets_the_articles_size_unasked(device, name, monkeypatch):
    monkeypatch.delenv("PERFKIT_PRESET")
    assert catalogue.preset(device=device).size.name == name
    assert catalogue.preset("smoke", device).size.name == "smoke"
    monkeypatch.setenv("PERFKIT_PRESET", "paper")
    assert catalogue.preset(device=device).size.name == "paper"
    with pytest.raises(InvalidValue, match="unknown preset 'quik'. Did you mean 'quick'"):
        catalogue.preset("quik")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (Target("cpu", cores=8), (4, 4, "bf16")),
        (Target("cpu", cores=1), (1, 1, "bf16")),
        (Target("cuda", cores=8), (8, 0, "bf16")),
        (Target("cuda", cores=64), (16, 0, "bf16")),  # a longer queue needs longer blocks
        (Target("cuda", cores=8, bf16=False), (8, 0, "fp16")),
    ],
)
def test_a_cpu_shares_its_cores_between_model_and_loader(target, expected):
    sizes = sizing(PRESETS["quick"].size, target)
    assert (sizes["workers"], sizes["threads"], sizes["amp"]) == expected


@pytest.mark.parametrize(
    ("name", "recipe", "target", "reason"),
    [
        ("batch_size", Recipe(batch_size=8), CPU, ""),
        ("pinning", Recipe(), CPU, "Pin memory, Non-blocking copy: needs a CUDA device"),
        ("device_prefetch", Recipe(), CPU, "needs a CUDA device"),  # it brings pinning: nothing is left of it
        ("compile", Recipe(compile=True), CPU, "nothing to change: the recipe already has it"),
        ("tf32", Recipe(), CPU, "float32 precision: TF32 is a format of CUDA devices"),
        ("tf32", Recipe(), Target("cuda", bf16=False), "came with Ampere"),
    ],
)
def test_a_stage_is_its_change_of_the_recipe_or_says_why_it_cannot_act(name, recipe, target, reason):
    stage = catalogue.stage(OPTIMIZATIONS[name], recipe, SIZES, target)
    assert reason in stage.reason
    assert stage.recipe == recipe.replace(batch_size=16 if name == "batch_size" else recipe.batch_size)


def test_below_a_stage_are_those_before_it_and_below_another_all():
    assert catalogue.below("pinning") == ("allocator", "data_loading")
    assert catalogue.below("baseline") == ()
    assert catalogue.below("accumulation") == LADDER[1:]
    assert catalogue.below("amp_fewer_threads") == catalogue.below("amp"), "it is both stages at once"
