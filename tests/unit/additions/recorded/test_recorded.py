"""A recording in the place of a measurement: its own stages, switches and workload, and nothing else."""

import json
import zipfile

import pytest
from msgspec.structs import replace

from perfkit import machine
from perfkit.additions.parity.study import parity
from perfkit.additions.recorded.source import RecordedSource
from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import ALL_KEPT, SO_FAR
from perfkit.recipe import Recipe
from perfkit.results import recordings
from perfkit.results.schema import AGAIN
from perfkit.show import tables, terminal
from perfkit.studies import staging
from perfkit.studies.climb import climb
from perfkit.studies.compare import candidate
from perfkit.studies.planning import plan
from perfkit.studies.sources import Progress
from tests.support.cli import perfkit

NAME, ONE = "cpu-quick", {"cpu_threads": 1}


def planned(*stages, **more):
    return plan(stages=stages or None, device=f"recorded:{NAME}", **more)


def stored():
    return {run.stage: run for run in recordings.find(NAME)}


def test_a_whole_ladder_is_played_as_it_was_recorded():
    progress = []
    runs = climb(planned(), progress=Progress(progress.append))
    assert [(run.id, run.raw) for run in runs] == [(run.id, run.raw) for run in recordings.find(NAME)]
    assert [update.run for update in progress] == runs
    text = " ".join(terminal.text(tables.report(runs)).split())
    assert "Not measured on this machine." in text and runs[0].origin.describe() in text


def test_a_ladder_measured_in_groups_is_played_in_its_order_and_one_stage_with_what_it_was_built_on(tmp_path):
    """What was kept so far begins a group, as often as several stages were kept."""
    old = [replace(run, origin=None) for run in recordings.find(NAME)]
    by_stage = {run.stage: run for run in old}
    base, loading, amp = (by_stage[name] for name in ("baseline", "data_loading", "amp"))
    so_far = replace(loading, id="so-far", stage=SO_FAR, pairings=[], decision=None)
    amp = replace(amp, pairings=[replace(each, against="so-far") for each in amp.pairings])
    file = tmp_path / "groups.json"
    file.write_bytes(recordings.content([base, loading, so_far, amp, *old[-2:]]))
    played = climb(plan(device=f"recorded:{file}"))
    assert [run.stage for run in played] == ["baseline", "data_loading", SO_FAR, "amp", ALL_KEPT, AGAIN]
    before, stage = climb(plan(stages=["amp"], device=f"recorded:{file}").trying(below=True))
    assert (before.id, stage.stage) == ("so-far", "amp")


def test_some_stages_come_with_the_baseline_and_its_repetition():
    assert [run.stage for run in climb(planned("amp"))] == ["baseline", "amp", AGAIN]


def test_one_stage_on_top_of_the_ladder_comes_with_the_one_before_it():
    before, amp = climb(planned("amp").trying(below=True))
    pairing = amp.pairing("previous")
    assert pairing.against == before.id
    assert before.stage == SO_FAR, "several stages of the group before it were kept"
    stages = staging.all_stages(planned("amp").trying(below=True).source())
    assert stages[-1].recipe.amp == "bf16" and stages[0].recipe.amp == "off"


def test_a_stage_that_could_not_be_measured_there_keeps_its_reason():
    before, pinning = climb(planned("pinning").trying(below=True))
    assert before.stage == "baseline" and pinning.reason == stored()["pinning"].reason
    heading, _ = staging.stage_diff(planned("pinning").trying(below=True).source())
    assert heading.startswith(f"n/a here: {pinning.reason}")


def test_what_the_recording_lacks_says_what_it_has():
    with pytest.raises(InvalidValue, match="recording 'cpu-quick' 'fused_optimizer'.*Allowed: baseline, all"):
        planned("fused_optimizer")
    with pytest.raises(InvalidValue, match="recording 'cpu-quick' 'fused_optimizer'"):
        candidate("fused_optimizer", planned())


@pytest.mark.parametrize("more", [{"settings": ONE}, {"changes": ONE}, {"recipes": (("a", Recipe()),)}])
def test_a_recording_is_played_with_its_own_stages_and_switches(more):
    with pytest.raises(InvalidValue, match="the stages and switches that it was recorded with"):
        climb(planned("amp").trying(**more))


def test_a_recording_has_its_own_workload_preset_and_options():
    with pytest.raises(InvalidValue, match=f"'{NAME}' is of perfkit.workloads.photos:Photos"):
        planned(options={"image_size": 7})
    assert (planned().recorded, planned().subject.size.name) == (NAME, "quick")


def test_a_recording_keeps_its_seed_and_so_does_the_script_of_its_stages(tmp_path):
    data = json.loads(recordings.available()[NAME].read_text(encoding="utf-8"))
    for run in data["runs"]:
        run["seed"] = 7
    file = tmp_path / "seven.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    script = perfkit("export", "--device", f"recorded:{file}", "--stage", "amp").stdout
    assert "torch.manual_seed(7)" in script


@pytest.mark.usefixtures("data_dir")
def test_a_recording_of_the_user_has_a_place_in_the_menu():
    own = machine.data_folder() / "recordings"
    own.mkdir(parents=True)
    with zipfile.ZipFile(own / "gpu-mine.zip", "w") as archive:
        archive.write(recordings.available()[NAME], "ladder.json")
    assert RecordedSource.menu()["recorded:gpu-mine"] == "recorded: gpu-mine"


def test_a_recording_takes_no_seed():
    with pytest.raises(InvalidValue, match="was recorded with its own seed"):
        plan(device="recorded:cpu-quick", seed=7)


def test_nothing_is_measured_on_a_recording():
    with pytest.raises(InvalidValue, match="It can be shown, but not measured"):
        parity(planned(), "AMP", Recipe())


def test_a_recording_with_an_unknown_switch_is_an_error_in_words(tmp_path):
    data = json.loads(recordings.available()[NAME].read_text(encoding="utf-8"))
    data["runs"][0]["recipe"]["batch_size"] = "<script>"
    (tmp_path / "odd.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(InvalidValue, match="batch_size"):
        plan(device=f"recorded:{tmp_path / 'odd.json'}")
