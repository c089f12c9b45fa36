"""`sim:NAME` as a source of runs: other workloads, refusals, reports and traces."""

import dataclasses
import json

import pytest
from msgspec.structs import replace

from perfkit.additions.doctor.noise import measure_noise
from perfkit.additions.inside import KERNELS
from perfkit.additions.inside.looks import kernels
from perfkit.additions.parity.study import parity
from perfkit.additions.search.tune import tune
from perfkit.additions.shared.looking import PROFILE
from perfkit.additions.simulate import chrome
from perfkit.additions.simulate.costs import constants, error_table
from perfkit.additions.simulate.host import ARTICLE
from perfkit.additions.simulate.source import SimulatedSession, SimulatedSource
from perfkit.additions.trace.analysis import analyse
from perfkit.errors import InvalidValue
from perfkit.recipe import Recipe
from perfkit.rules import why_not
from perfkit.studies import staging
from perfkit.studies.planning import plan
from perfkit.studies.sources import Progress, Study
from tests.unit.additions.simulate.plans import prediction


def computed(device, workload, *changes):
    """The runs of stages with these switches."""
    recipes = [Recipe(batch_size=32).replace(**switches) for switches in changes]
    planned = plan(workload, device=device)
    with planned.open() as session:
        titled = [(str(number), recipe) for number, recipe in enumerate(recipes)]
        return session.measure(staging.recipe_stages(titled, session.source.target), planned.rule)


def test_another_workload_has_its_fetch_time_measured_here(no_orphans):
    [run] = computed("sim:rtx3090", "tiny_gpt", {"batch_size": 4, "amp": "fp16", "compile": True})
    assert run.status == "ok", run.reason
    assert "virtual host" in run.facts["host"] and "ms to fetch" in run.facts["host"]


def test_what_cannot_be_computed_is_a_run_with_the_reason(no_orphans):
    runs = computed("sim:v100", None, {}, {"batch_size": 4096}, {"amp": "bf16"})
    assert [run.status for run in runs] == ["ok", "failed", "not_applicable"]
    assert "out of memory on the simulated GPU" in runs[1].reason
    assert "context and workspaces" in runs[1].reason
    assert "does not compute in bfloat16" in runs[2].reason


REFUSED = {
    "parity": lambda asked: parity(asked, "it", Recipe()),
    "tuning": tune,
    "A/A noise": lambda asked: measure_noise(asked, 1),
    "--fail-if-slower": lambda asked: asked.source().require(Study.GATE),
    "a look at kernels": lambda asked: kernels(None, None, Progress(), device=asked.subject.device),
}


@pytest.mark.parametrize("study", REFUSED)
def test_a_study_that_would_claim_more_is_refused_before_anything_starts(study):
    with pytest.raises(InvalidValue, match=f"^{study} is refused on sim:v100: ") as refusal:
        REFUSED[study](plan(device="sim:v100"))
    assert (
        SimulatedSource.refused[study] in str(refusal.value)
        and REFUSED.keys() == SimulatedSource.refused.keys()
    )


def test_a_switch_without_published_figures_is_refused_with_the_reason():
    source = plan(device="sim:rtx3090").source()
    compiled = Recipe(compile=True, compile_mode="max-autotune")
    assert "no published figures" in why_not("compile_mode", compiled, source.target)
    assert "not simulated in bfloat16" in why_not("amp", Recipe(amp="bf16"), source.target)
    assert staging.all_stages(source)[0].recipe == source.baseline()
    source = dataclasses.replace(source, reported=replace(source.description, convolves=False))
    session = SimulatedSession(source, Progress())
    for predict in (lambda: staging.all_stages(source), lambda: session.prediction(source.baseline())):
        with pytest.raises(InvalidValue, match=r"not simulated in float32: .* another setting, such as"):
            predict()


def test_python_frames_of_a_step_that_does_not_run_are_refused(tmp_path, monkeypatch):
    session = SimulatedSession(plan(device="sim:v100").source(), Progress())
    monkeypatch.setattr(session, "prediction", lambda recipe: prediction())
    where = {"path": str(tmp_path / "a.json"), "active": 2}
    assert session.ask_training(Recipe(), PROFILE, **where, stacks=False) == where["path"]
    with pytest.raises(InvalidValue, match="a simulated step has no Python frames"):
        session.ask_training(Recipe(), PROFILE, **where, stacks=True)


def test_a_question_that_only_a_training_can_answer_is_refused_in_words(monkeypatch):
    """It was answered as a profile, which ended in a KeyError."""
    session = SimulatedSession(plan(device="sim:v100").source(), Progress())
    monkeypatch.setattr(session, "prediction", lambda recipe: prediction())
    with pytest.raises(
        InvalidValue, match=r"no step of a simulated GPU runs, to answer perfkit\.additions\.in"
    ):
        session.ask_training(Recipe(), KERNELS)


def test_errors_are_those_of_the_constants_in_use():
    """Whoever changes a constant states new errors: `python -m benchmarks.fit_simulation --write`."""
    assert error_table().constants == constants().digest
    held_out = [errors for errors in error_table().errors if errors.use == "held out"]
    assert held_out and all(errors.inside >= 0.89 for errors in held_out)


def test_a_trace_reads_like_a_real_one_and_says_what_it_is(tmp_path):
    step = prediction(pin_memory=True, non_blocking=True)
    path = tmp_path / "step.json.gz"
    outcome = step.outcome(noted=3)
    chrome.write(path, step, outcome)
    analysis = analyse(path)
    assert len(analysis.steps) == 3
    assert analysis.device["simulated"]
    assert sum(analysis.mean_us.values()) == pytest.approx(1e6 * outcome.step_s, rel=0.05)


def test_a_trace_has_no_batch_that_was_loaded_long_before_its_steps(tmp_path):
    """Workers that are far ahead would make the recording as long as they are ahead."""
    step = dataclasses.replace(prediction(workers=2), host=ARTICLE, fetch_s=1e-6)
    outcome = step.outcome(noted=3)
    chrome.write(tmp_path / "step.json", step, outcome)
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    begin = min(event["ts"] for event in events if event.get("name", "").startswith("ProfilerStep"))
    loads = [event for event in events if event.get("cat") == "loader_worker"]
    assert len([bar for bar in outcome.bars if bar.what == "worker"]) > len(loads)
    assert all(event["ts"] + event["dur"] >= begin for event in loads)
