"""What the text claims about data/recordings/ holds for what is in it.

`make recordings` runs this on the new recordings before they replace the old ones (`PERFKIT_RECORDINGS`).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from docs import record
from docs.pictures import in_workbench, source, words
from perfkit import trace
from perfkit.ladder.stages import AGAIN
from perfkit.results.recordings import Recording, load
from perfkit.results.run import Run
from perfkit.simulate import article
from perfkit.simulate.constants import constants
from perfkit.trace import Analysis, diagnose

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("PERFKIT_RECORDINGS", record.FOLDER))
PICTURES = (*record.THROUGHPUT, record.WORKBENCH)
EQUAL = 0.2
"""Chapter 09: "In these two recordings, the operators take about the same time"."""


@pytest.fixture(scope="module")
def provenance() -> dict[str, Any]:
    listing = FOLDER / record.PROVENANCE
    assert listing.is_file(), "no provenance.json: recorded by hand, not by `make recordings`"
    parts: dict[str, Any] = json.loads(listing.read_text(encoding="utf-8"))["parts"]
    return parts


@pytest.fixture(scope="module")
def ladder() -> Recording:
    return load(FOLDER / record.LADDER)


@pytest.fixture(scope="module")
def pair() -> tuple[Analysis, Analysis]:
    before, after = (trace.analyse(trace.load(FOLDER / record.trace_name(stage))) for stage in record.TRACES)
    return before, after


def test_every_file_was_made_by_the_command_and_is_as_it_was_made(provenance: dict[str, Any]) -> None:
    assert provenance.keys() == {part.name for part in record.PARTS}
    made = {name: digest for part in provenance.values() for name, digest in part["sha256"].items()}
    files = [file for file in FOLDER.rglob("*") if file.is_file() and file.name != record.PROVENANCE]
    found = {
        file.relative_to(FOLDER).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }
    assert found == made


@pytest.mark.parametrize("part", [part for part in record.PARTS if part.measures], ids=lambda part: part.name)
def test_the_machine_was_quiet_and_is_named(part: record.Part, provenance: dict[str, Any]) -> None:
    about = provenance[part.name]
    taken = about["taken_by_others"]
    assert taken["windows"] >= 1
    assert taken["largest" if part.any_window else "mean"] <= taken["limit"] <= 0.05
    assert about["conditions"]["before"]["load_average"] and about["conditions"]["after"]["load_average"]
    assert about["machine"]["cpu"]["model"] and about["machine"]["versions"]["torch"]
    assert re.fullmatch("[0-9a-f]{40}", about["commit"]), "of code that is in no commit"
    assert "docs.record" in about["command"]


def test_all_of_it_is_of_one_machine(provenance: dict[str, Any], ladder: Recording) -> None:
    machines = {provenance[name]["machine"]["id"] for name in ("ladder", "traces")}
    assert machines == {run.machine["id"] for run in ladder.runs if run.machine}
    assert len(machines) == 1


# ---------------------------------------------------------------- the ladder


def test_the_ladder_is_whole_and_undisturbed(ladder: Recording) -> None:
    runs = ladder.runs
    assert {run.status for run in runs} == {"ok", "not_applicable"}
    assert all(run.reason for run in runs if run.status != "ok")
    assert runs[0].stage == "baseline" and runs[-1].stage == AGAIN
    assert len({run.session for run in runs}) == 1
    for run in measured(ladder):
        assert run.disturbed is None, run.title
        assert run.samples_per_s and run.step_s and run.data_wait_s and run.ceiling_samples_per_s
        assert run.peak_memory_bytes and run.startup_s and run.losses and run.facts
        assert run.mechanism and all(proof.ok for proof in run.mechanism)
        assert run.raw.step_s and len(run.raw.block_samples_per_s) >= 5


def test_a_longer_bar_never_has_a_ratio_below_1(ladder: Recording) -> None:
    by_id = {run.id: run for run in measured(ladder)}
    compared = 0
    for run in by_id.values():
        for pairing in run.pairings:
            own, other = rate(run), rate(by_id[pairing.against])
            assert pairing.ratio.ratio == pytest.approx(own / other, rel=0.01), run.title
            if abs(own / other - 1) > 0.01:
                assert (own > other) == (pairing.ratio.ratio > 1)
            compared += 1
    assert compared >= len(by_id)


def measured(recording: Recording) -> list[Run]:
    return [run for run in recording.runs if run.status == "ok"]


def rate(run: Run) -> float:
    assert run.samples_per_s
    return run.samples_per_s.value


# ---------------------------------------------------------------- the simulated ladders


@pytest.mark.parametrize("name", record.SIMULATED)
def test_a_simulated_ladder_says_so_and_is_of_todays_model(name: str) -> None:
    recording = load(FOLDER / name)
    again = "the model has changed: make recordings ARGS='--only simulated'"
    for run in recording.runs:
        assert run.device == record.SIMULATED[name]
        assert run.status == "ok", f"{run.title}: {run.reason}"
        assert run.recipe["amp"] in ("off", "fp16"), "what a published figure vouches for"
        assert run.simulated and run.simulated.is_virtual
        today = (str(constants().version), constants().digest)
        assert (run.simulated.model, run.simulated.constants) == today, again
        assert run.simulated.band > 0 and not run.losses


def test_the_articles_ladder_is_whole_and_its_stages_are_predicted_or_too_close() -> None:
    runs = load(FOLDER / "sim-v100.json").runs
    assert [run.stage for run in runs] == ["baseline", *article.LADDER]
    for run in runs[1:]:
        ratio = run.speedup("previous")
        assert ratio and ratio.verdict in ("predicted faster", "predicted slower", "too close to predict")
    total = runs[-1].speedup("baseline")
    assert total and total.verdict == "predicted faster"


# ---------------------------------------------------------------- the pictures


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_shows_the_recording(name: str, ladder: Recording) -> None:
    with Image.open(FOLDER / name) as picture:
        about = dict(picture.text)  # type: ignore[attr-defined]
    shown = in_workbench(ladder.runs) if name == record.WORKBENCH else ladder.runs
    assert about["Source"] == source(FOLDER / record.LADDER), "make recordings ARGS='--only pictures'"
    assert about["Description"] == words(shown), "make recordings ARGS='--only pictures'"


def test_the_readme_shows_the_pictures() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not [name for name in PICTURES if f"data/recordings/{name}" not in text]


# ---------------------------------------------------------------- chapter 09


def test_the_traces_are_sound(pair: tuple[Analysis, Analysis]) -> None:
    for analysis in pair:
        assert analysis.health == []
        assert len(analysis.steps) == 3


def test_the_operators_take_the_same_time_in_both(pair: tuple[Analysis, Analysis]) -> None:
    before, after = (part(analysis, "cpu_op") for analysis in pair)
    assert after == pytest.approx(before, rel=EQUAL)


def test_what_went_away_is_the_wait_for_the_loader(pair: tuple[Analysis, Analysis]) -> None:
    before, after = pair
    waits = part(before, "dataloader"), part(after, "dataloader")
    steps = [analysis.mean_step_us or 0.0 for analysis in pair]
    assert waits[0] > 0.3 * steps[0]
    assert waits[1] < 0.2 * waits[0]
    assert waits[0] - waits[1] > (1 - EQUAL) * (steps[0] - steps[1]) > 0


def test_the_diagnosis_follows(pair: tuple[Analysis, Analysis]) -> None:
    names = [{finding.bottleneck for finding in diagnose(analysis)} for analysis in pair]
    assert "data-bound" in names[0]
    assert "data-bound" not in names[1]


def test_the_simulated_timeline_shows_a_copy_that_the_host_waits_for() -> None:
    """Chapter 09: the copy is a visible part of the step, and the host is blocked meanwhile."""
    analysis = trace.analyse(trace.load(FOLDER / record.TIMELINE))
    assert {one.code for one in analysis.health} == {"simulated"} and analysis.steps
    assert {finding.bottleneck for finding in diagnose(analysis)} == {"copy-bound"}
    assert part(analysis, "kernel") > part(analysis, "memcpy") > 0.1 * (analysis.mean_step_us or 0.0)


def part(analysis: Analysis, name: str) -> float:
    """µs of a step."""
    value = analysis.mean_us[name]
    assert value
    return value
