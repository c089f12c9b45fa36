"""What the text claims about data/recordings/ holds for what is in it."""

import hashlib
import json
import re

import pytest

from docs import record
from perfkit import trace
from perfkit.results.recordings import find, load
from perfkit.show import tables
from perfkit.simulate.costs import constants

EQUAL = 0.2
"""Chapter 02: "In these two recordings, the operators take about the same time"."""


@pytest.fixture(scope="module")
def ladder():
    return load(record.FOLDER / record.LADDER)


@pytest.fixture(scope="module")
def pair():
    before, after = (trace.analyse(trace.load(record.FOLDER / name)) for name in record.TRACES.values())
    return before, after


def test_every_file_has_a_provenance_and_is_as_it_was_recorded():
    parts = json.loads((record.FOLDER / record.PROVENANCE).read_text(encoding="utf-8"))["parts"]
    assert parts.keys() == record.PARTS.keys()
    for part in parts.values():
        assert part["machine"]["cpu"]["model"] and part["machine"]["versions"]["torch"]
        assert re.fullmatch("[0-9a-f]{40}", part["commit"]), "of code that is in no commit"
    files = [file for file in record.FOLDER.rglob("*") if file.is_file() and file.name != record.PROVENANCE]
    digests = {
        file.relative_to(record.FOLDER).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
    }
    assert digests == {name: digest for part in parts.values() for name, digest in part["sha256"].items()}


def test_the_ladder_is_complete_and_undisturbed(ladder):
    runs = ladder.runs
    assert {run.status for run in runs} == {"ok", "not_applicable"}
    assert all(run.reason for run in runs if run.status != "ok")
    assert runs[0].stage == "baseline" and runs[-1].is_again
    assert len({run.session for run in runs}) == 1
    for run in measured(ladder):
        assert run.disturbed is None, run.title
        assert run.samples_per_s and run.step_s and run.data_wait_s and run.ceiling_samples_per_s
        assert run.peak_memory_bytes and run.startup_s and run.losses
        assert run.mechanism and all(proof.ok for proof in run.mechanism)
        assert len(run.raw.block_samples_per_s) >= 5


def measured(recording):
    return [run for run in recording.runs if run.status == "ok"]


def test_the_simulated_ladder_says_so_and_is_of_todays_model():
    again = "the model has changed: make recordings ARGS='--only simulated'"
    runs = load(record.FOLDER / record.SIMULATED).runs
    for run in runs:
        assert (run.device, run.status) == ("sim:v100", "ok"), run.reason
        assert run.simulated and run.simulated.band > 0 and not run.losses
        today = (str(constants().version), constants().digest)
        assert (run.simulated.model, run.simulated.constants) == today, again
    for run in runs[1:]:
        ratio = run.speedup("previous")
        assert ratio and ratio.verdict in ("predicted faster", "predicted slower", "too close to predict")


def test_the_traces_differ_by_the_wait_for_the_loader(pair):
    before, after = pair
    assert all(analysis.health == [] and len(analysis.steps) == 3 for analysis in pair)
    assert part(after, "cpu_op") == pytest.approx(part(before, "cpu_op"), rel=EQUAL)
    waits = part(before, "dataloader"), part(after, "dataloader")
    steps = [analysis.mean_step_us or 0.0 for analysis in pair]
    assert waits[0] > 0.3 * steps[0]
    assert waits[1] < 0.2 * waits[0]
    assert waits[0] - waits[1] > (1 - EQUAL) * (steps[0] - steps[1]) > 0
    names = [{finding.bottleneck for finding in analysis.diagnosis} for analysis in pair]
    assert "data-bound" in names[0] - names[1]


def test_the_simulated_timeline_shows_a_copy_that_the_host_waits_for():
    """Chapter 09: the copy is a visible part of the step, and the host is blocked meanwhile."""
    analysis = trace.analyse(trace.load(record.FOLDER / record.TIMELINE))
    assert {problem.code for problem in analysis.health} == {"simulated"} and analysis.steps
    assert {finding.bottleneck for finding in analysis.diagnosis} == {"copy-bound"}
    assert part(analysis, "kernel") > part(analysis, "memcpy") > 0.1 * (analysis.mean_step_us or 0.0)


def part(analysis, name):
    """µs of a step."""
    value = analysis.mean_us[name]
    return value


def test_a_simulated_value_is_marked_once():
    *_, row = tables.ladder(find("sim-v100").runs).rows
    texts = list(map(str, row))
    assert not [text for text in texts if "~~" in text] and any(text.startswith("~") for text in texts)
    assert any(text.endswith(" B") and not text.startswith("~") for text in texts), "bytes are known"
