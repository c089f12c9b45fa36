"""The page about the model's errors, for anchors made by hand."""

from __future__ import annotations

import math

import pytest

from perfkit.show import tables_accuracy
from perfkit.show.document import figure, table
from perfkit.simulate.anchors import Anchor, Anchors, summary


def anchor(model: str, predicted: float, **more: object) -> Anchor:
    given = {
        "gpu": "rtx3090", "precision": "float16", "claim": "rate", "published": 100.0, "use": "held out",
        "source": "a table", **more,
    }  # fmt: skip
    return Anchor(model=model, predicted=predicted, **given)


ANCHORS = [
    anchor("resnet18", 110.0), anchor("resnet50", 95.0), anchor("vit", 140.0),
    anchor("densenet", 100.0, use="fitted", gpu="v100"),
    anchor("resnet18", 1.2, published=1.5, claim="channels_last"),
]  # fmt: skip


def test_errors_are_over_the_published_figures() -> None:
    found = summary(ANCHORS[:3])
    assert (found.count, found.worst.model) == (3, "vit")
    assert found.median == pytest.approx(0.1)
    assert found.p90 == pytest.approx(0.34)


def test_the_table_has_a_row_for_each_gpu_claim_and_use_and_names_the_worst() -> None:
    contents = tables_accuracy.sections(Anchors("abc", ANCHORS), [])
    rows = table(contents, "Errors").rows
    assert [row[:5] for row in rows] == [
        ["rtx3090", "float16", "channels_last", "training", "held out"],
        ["rtx3090", "float16", "rate", "training", "held out"],
        ["v100", "float16", "rate", "training", "fitted"],
    ]
    assert rows[1][-1] == "vit +40%"
    assert table(contents, "The largest").rows[0][0] == "vit"


@pytest.mark.parametrize("dark", [False, True])
def test_the_figure_has_every_point_where_its_numbers_are(dark: bool) -> None:
    contents = tables_accuracy.sections(Anchors("abc", ANCHORS), [])
    ax = figure(contents, "rates").draw(dark).axes[0]
    points = {
        (x, y) for line in ax.lines if line.get_marker() not in ("None", None, "")
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    }  # fmt: skip
    assert points == {(100.0, 110.0), (100.0, 95.0), (100.0, 140.0), (100.0, 100.0)}
    low, _ = ax.get_xlim()
    assert math.isclose(low, 0.8 * 95.0)
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert "vit on rtx3090, +40%" in figure(contents, "rates").alt


def test_the_lesson_names_the_stage_that_agrees_by_two_errors() -> None:
    ladder = [("baseline", 0.15), ("large batch", -0.21), ("AMP", -0.01), ("compile", -0.08)]
    text = tables_accuracy.lesson(ladder)
    assert "“AMP” samples/s are only -1% off" in text
    assert "this stage is +25% off, because the stage before it is -21% off" in text
    assert not tables_accuracy.lesson([("baseline", 0.0), ("workers", 0.02), ("AMP", 0.01)])
