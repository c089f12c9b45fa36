"""Goes over every view and every workload."""

import pytest
import torch
from torch import nn

from perfkit import rules, workloads
from perfkit.ladder.presets import PRESETS
from perfkit.recipe import Recipe
from perfkit.results.run import Raw, Run
from perfkit.show import figures
from tests.support import toy

VIEWS = sorted(figures.VIEWS)
WORKLOADS = sorted(workloads.BUILT_IN)


def _run(name: str, **more: object) -> Run:
    fields = {"id": name, "session": "s", "created": "", "stage": name, "workload": "m:W", "device": "cpu"}
    return Run(**fields, recipe=Recipe().to_dict(), **more)  # type: ignore[arg-type]


SESSION = [
    _run("baseline", raw=Raw(block_samples_per_s=[1.0, 1.1, 0.9], step_s=[0.1] * 4, data_wait_s=[0.05] * 4)),
    _run("pinning", status="not_applicable", reason="needs a CUDA device"),
    _run("compile", status="failed", reason="<script>no compiler</script>"),
]


def test_the_tests_below_go_over_all_of_them() -> None:
    assert VIEWS == ["losses", "step_time", "throughput"]
    assert WORKLOADS == ["cifar_resnet18", "photos", "tiny_gpt"]


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_draws_what_was_not_measured_as_not_measured(name: str, dark: bool) -> None:
    view = figures.view(name, SESSION)
    svg = view.svg()
    assert view.png(dark)
    assert 'role="img"' in svg
    assert "<script" not in svg
    assert view.alt


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_bears_a_session_without_anything(name: str) -> None:
    assert figures.view(name, []).nothing


def test_whether_a_model_convolves_is_told_without_its_weights() -> None:
    assert workloads.convolves(workloads.load("cifar_resnet18", {"image_size": 32, "samples": 8}))
    assert not workloads.convolves(toy.Toy())

    class NeedsRealTensors(toy.Toy):
        def model(self) -> nn.Module:
            return nn.Linear(int(torch.ones(3).sum()), 2)

    assert workloads.convolves(NeedsRealTensors())


@pytest.mark.parametrize("preset", sorted(PRESETS))
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_has_sizes_for_every_preset(name: str, preset: str) -> None:
    found = workloads.find(name)
    assert workloads.options_for(found, preset, {})
    first = next(iter(workloads.options_for(found, preset, {})))
    assert workloads.options_for(found, preset, {first: 7})[first] == 7
    assert rules.offers(found)
