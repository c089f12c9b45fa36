"""What a plan written by hand says of memory, kernels, copies and waits, against what can be counted."""

from __future__ import annotations

import pytest

from perfkit.recipe import Recipe
from perfkit.show import tables_inside
from perfkit.show.document import figure, table
from perfkit.simulate import costs
from perfkit.simulate.gpus import GPUS
from perfkit.simulate.prediction import Prediction
from perfkit.simulate.queue import Link, Planned
from perfkit.simulate.step import Allocate, Copy, Event, Fetch, Operator, Step, Tensor, Wait
from perfkit.studies import inspect_simulated

IMAGE, WEIGHT = Tensor((8, 3, 14, 14), "float32"), Tensor((64, 3, 3, 3), "float32")
OUTPUT = Tensor((8, 64, 14, 14), "float32")
HOW = {"stride": [1, 1], "padding": [1, 1], "dilation": [1, 1], "groups": 1}
EVENTS: list[Event] = [
    Fetch(),
    Allocate(500, "inputs", 1),
    Copy(500, site="/program/train.py:10"),
    Operator("aten.convolution", "forward", [IMAGE, WEIGHT], [OUTPUT], HOW, "stem", "/mine/model.py:7"),
    Allocate(2000, "activations", 2),
    Operator("aten.convolution_backward", "backward", [OUTPUT, IMAGE, WEIGHT], [WEIGHT],
             {**HOW, "output_mask": [False, True, False]}, "stem", "/mine/model.py:7"),
    Allocate(300, "gradients", 3),
    Allocate(-2000, "activations", 2),
    Wait("loss.item()", every=2, site="/mine/loop.py:20"),
    Allocate(-300, "gradients", 3),
    Allocate(-500, "inputs", 1),
]  # fmt: skip


@pytest.fixture
def prediction() -> Prediction:
    resident = [Allocate(1000, "parameters", 8), Allocate(1000, "optimizer", 9)]
    step = Step(events=EVENTS, resident=resident, samples=8, torch="2.15.0")
    planned = Planned(actions=[], link=Link(12e9, 6e9), peak_bytes=4800, reserved_bytes=5000)
    gpu = GPUS["v100"]
    return Prediction(gpu, Recipe(batch_size=8), step, costs.kernels(step, gpu), planned)


def test_memory_is_that_of_the_plan_by_kind_phase_and_line(prediction: Prediction) -> None:
    found = inspect_simulated.memory(prediction)
    assert found.peak == 1000 + 1000 + 500 + 2000 + 300
    assert found.peak_phase == "backward"
    held = {"weights": 1000, "gradients": 300, "optimizer": 1000, "batch": 500, "activations": 2000}
    assert found.parts == {**held, "workspace": 0}
    assert found.phases == {"data": 2500, "forward": 4500, "backward": 4800}
    assert found.places[0] == ("stem (model.py:7)", "activations", 2000)
    assert (found.allocated, found.reserved) == (4800, 5000)
    assert found.simulated.startswith("Simulated Tesla V100")


def test_copies_and_waits_are_counted_with_their_lines(prediction: Prediction) -> None:
    found = inspect_simulated.syncs(prediction, steps=4)
    counted = [(place.where, place.kind, place.count, place.bytes) for place in found.places]
    assert counted == [("train.py:10", "host to device", 4, 2000), ("loop.py:20", "wait", 2, 0)]
    assert all(place.fix for place in found.places)
    assert "nothing ran" in found.simulated


def test_kernels_have_the_work_of_the_step_and_the_roofs_of_the_model(prediction: Prediction) -> None:
    found = inspect_simulated.kernels(prediction, step_s=1e-3)
    forward = 2 * 8 * 64 * 14 * 14 * 3 * 9
    assert found.work.flops == 2 * forward, "forward, and the gradient of the weights"
    assert found.mfu == pytest.approx(2 * forward / found.peaks["float32"] / 1e-3)
    assert set(found.peaks) == {"float32", "float16"}, "what published figures of this GPU vouch for"
    assert found.peaks["float32"] < 15.7e12 * 4, "Winograd's saving apart, below the data sheet"
    assert found.bytes_per_s < 900e9
    assert [(row.layer, row.sizes, row.padded) for row in found.misaligned] == [("stem", [3, 64], [8, 64])]
    assert all(row.seconds > 0 for row in found.rows)


def test_what_is_not_modelled_is_not_shown(prediction: Prediction) -> None:
    found = inspect_simulated.kernels(prediction, step_s=1e-3)
    assert len(found.rows) == 2 * (5 + 4)
    contents = tables_inside.kernels(found)
    assert "not simulated" in figure(contents, "shapes").nothing
    assert figure(contents, "roofline").title.startswith("Simulated")
    assert table(contents, "Roofs").title == "Roofs, simulated"
