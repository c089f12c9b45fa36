"""`sim:NAME` as a source of runs: other workloads, refusals, reports and traces."""

import pytest

from perfkit import trace
from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import Stage
from perfkit.recipe import Recipe
from perfkit.simulate import chrome, inspect, planning, recording, source
from perfkit.simulate.bands import table
from perfkit.simulate.costs import constants
from perfkit.simulate.source import Simulated
from perfkit.studies.progress import Progress
from perfkit.studies.sources import NotHere, StopRule, source_of
from perfkit.studies.sources import plan as planned
from perfkit.workloads import load
from tests.unit.simulate.plans import prediction


def here(function, *arguments, **_):
    """In place of a process: plans in this one."""
    if isinstance(function, str):
        function = getattr(planning, function.partition(":")[2])
    return function(*arguments)


@pytest.fixture
def in_process(monkeypatch):
    monkeypatch.setattr(planning, "call", here)
    monkeypatch.setattr(source, "call", here)


def stages(changes):
    recipe, found = Recipe(batch_size=32), []
    for name, switches in changes:
        recipe = recipe.replace(**switches)
        found.append(Stage(name, name, recipe))
    return found


def computed(device, workload, steps, **more):
    plan = planned(workload, device=device, **more)
    with plan.source(plan, Progress()) as opened:
        return opened.measure(steps, StopRule(5))


def test_sim_is_a_source():
    assert source_of("sim:v100") is Simulated


def test_another_workload_has_its_fetch_time_measured_here(in_process):
    [run] = computed("sim:rtx3090", "tiny_gpt", [Stage("b", "b", Recipe(batch_size=4, amp="fp16"))])
    assert run.status == "ok", run.reason
    assert "virtual host" in run.facts["host"] and "ms to fetch" in run.facts["host"]


def test_what_cannot_be_computed_is_a_run_with_the_reason(in_process):
    runs = computed(
        "sim:v100", None, stages((("baseline", {}), ("b", {"batch_size": 4096}), ("c", {"ranks": 2})))
    )
    assert [run.status for run in runs] == ["ok", "failed", "failed"]
    assert "out of memory on the simulated GPU" in runs[1].reason
    assert "context and workspaces" in runs[1].reason
    assert "several ranks are not simulated" in runs[2].reason


@pytest.mark.parametrize("device", ["sim:a100", "sim:h100", "sim:gtx9"])
def test_other_gpus_are_refused(device):
    with pytest.raises(InvalidValue):
        planned(device=device)


def test_what_would_need_numbers_is_not_here():
    plan = planned(device="sim:v100")
    with pytest.raises(NotHere, match="no numbers"):
        Simulated(plan, Progress()).require("parity")


def test_errors_are_those_of_the_constants_in_use():
    """Whoever changes a constant states new errors: `python -m benchmarks.fit_simulation --write`."""
    assert table().constants == constants().digest
    held_out = [errors for errors in table().errors if errors.use == "held out"]
    assert held_out and all(errors.inside >= 0.89 for errors in held_out)


def test_a_trace_reads_like_a_real_one_and_says_what_it_is(tmp_path):
    step = prediction(pin_memory=True, non_blocking=True)
    path = tmp_path / "step.json.gz"
    outcome = step.outcome(noted=3)
    chrome.write(path, step, outcome)
    analysis = trace.analyse(trace.load(path))
    assert len(analysis.steps) == 3
    assert analysis.device["simulated"]
    assert sum(analysis.mean_us.values()) == pytest.approx(1e6 * outcome.step_s, rel=0.05)


def test_reports_add_up():
    step = prediction(batch_size=64)
    memory = inspect.memory(step)
    assert memory.peak == sum(memory.parts.values())
    assert memory.parts["weights"] > 0 and "Predicted" in memory.simulated
    report = inspect.syncs(step, 4)
    assert [(place.kind, place.memory, place.count) for place in report.places] == [
        ("host to device", "pageable", 8)
    ]


def test_the_workbooks_transformer_can_be_planned():
    step = recording.record(load("tiny_gpt", {}), Recipe(batch_size=2, amp="fp16", compile=True))
    assert step.compiled and any(op.name == "fused" for op in step.operators)


def test_a_panels_menu_offers_the_gpus():
    assert Simulated.menu()["sim:v100"] == "simulated: Tesla V100-SXM2-16GB"
