"""What the chapters train on a GPU fits on Colab's: a T4 of 15 GB, two cores, 5.8 GB of shared memory.

The memory is planned by the simulation; whether a real T4 agrees is for `make gpu` to say.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import perfkit
from perfkit.additions.shared.looking import LOOK
from perfkit.additions.simulate import prediction
from perfkit.ladder import catalogue
from perfkit.recipe import Recipe
from perfkit.rules import Target

GIB = 14.74
"""What a process can use of a T4: torch's own figure, as in its messages about memory."""
SHARED_BYTES = 5.8e9
ROOT = Path(__file__).parents[2]
CHAPTERS = ROOT / "notebooks" / "src"
STAGES = {"pinning": "03", "batch_size": "04", "channels_last": "06", "amp": "06", "compile": "07"}

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def ladder():
    """The recipe of every stage of the default ladder on a T4, everything kept; and the session that plans it."""
    plan = perfkit.plan(device="sim:v100", host="article")  # the plan of a step knows no GPU
    with plan.open(study=LOOK) as session:
        target = Target(
            "cuda", frozenset(session.source.description.offers), convolves=True, bf16=False, cores=2
        )
        sizes, recipe, found = catalogue.sizing(plan.subject.size, target), Recipe(), {}
        for name in catalogue.LADDER:
            stage = catalogue.stage(catalogue.optimization(name), recipe, sizes, target)
            if not stage.reason:
                found[name] = recipe = stage.recipe
        yield found, session


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_of_a_chapter_fits_into_a_t4(ladder, name):
    (chapter,) = CHAPTERS.glob(f"{STAGES[name]}_*.py")
    assert f'StagePanel("{name}")' in chapter.read_text(encoding="utf-8")
    recipes, session = ladder
    recipe = recipes[name]
    if name == "pinning":  # the chapter adds a second stream
        recipe = recipe.replace(device_prefetch=True)
    step = session.prediction(recipe)
    most = step.peak[0] * (1 + step.memory_band) + prediction._CONTEXT + prediction._WORKSPACE
    assert most / 2**30 < GIB
    assert recipe.amp != "bf16", "a T4 has none"


def test_float32_at_the_largest_batch_would_not_fit(ladder):
    """So that the tests above can fail."""
    recipes, session = ladder
    wide = replace(recipes["amp"], amp="off", batch_size=session.source.plan.subject.size.largest_batch)
    with pytest.raises(perfkit.PerfkitError, match="out of memory"):
        session.prediction(wide)


def test_the_batches_that_two_trainings_load_ahead_fit_into_shared_memory(ladder):
    recipes, _ = ladder
    for name in STAGES:
        recipe = recipes[name]
        side = 32 if recipe.device_resize else 224
        sample = 3 * side * side * (1 if recipe.uint8_copy else 4)
        ahead = recipe.workers * recipe.prefetch_factor
        assert 2 * ahead * recipe.batch_size * sample < SHARED_BYTES, name


def test_what_chapter_11_puts_on_a_gpu_is_small():
    assert "scripts/hidden_waits.py" in (CHAPTERS / "11_hidden_transfers.py").read_text(encoding="utf-8")
    text = (ROOT / "data" / "scripts" / "hidden_waits.py").read_text(encoding="utf-8")
    (shape,) = re.findall(r'torch\.randn\((\d+), (\d+), device="cuda"\)', text)
    rows, columns = map(int, shape)
    assert 3 * 4 * rows * columns < 0.1 * GIB * 2**30  # it, its product, and one product before
