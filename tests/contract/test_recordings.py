"""What the text claims about data/recordings/ holds for what is in it."""

import gzip
import hashlib
import json
import re
import zipfile

import pytest

from docs import climb, record
from perfkit.additions.simulate.costs import constants
from perfkit.additions.trace.analysis import analyse
from perfkit.additions.trace.table import Trace
from perfkit.results.recordings import find
from perfkit.show import tables
from tests.support import double


def test_every_file_has_a_provenance_and_is_as_it_was_recorded():
    parts = json.loads((record.FOLDER / record.PROVENANCE).read_text(encoding="utf-8"))["parts"]
    assert {*record.USUAL} <= parts.keys() <= record.PARTS.keys()
    digests = {}
    for part in parts.values():
        assert part["machine"]["cpu"]["model"] and part["machine"]["versions"]["torch"]
        assert re.fullmatch("[0-9a-f]{40}", part["commit"]), "of code that is in no commit"
        digests |= part["sha256"]
    files = {file.relative_to(record.FOLDER).as_posix(): file for file in record.FOLDER.rglob("*.*")}
    del files[record.PROVENANCE], files[climb.PAGE.name]  # the page is made of the others (test_climb.py)
    assert {name: hashlib.sha256(file.read_bytes()).hexdigest() for name, file in files.items()} == digests


def made_with_the_double(folder):
    """The files of a folder that name the double of CUDA, packed ones too."""
    found = []
    for file in sorted(folder.rglob("*.*")):
        parts = [file.read_bytes()]
        if file.suffix == ".gz":
            parts = [gzip.decompress(parts[0])]
        elif file.suffix == ".zip":
            with zipfile.ZipFile(file) as archive:
                parts = [archive.read(name) for name in archive.namelist()]
        if any(mark.encode() in part for part in parts for mark in (double.NAME, double.UUID)):
            found.append(file.name)
    return found


def test_no_recording_was_made_with_the_double_of_cuda(tmp_path):
    assert made_with_the_double(record.FOLDER) == []
    (tmp_path / "runs.json").write_text(json.dumps({"device": {"name": double.NAME}}))
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(f"GPU-{double.UUID}".encode()))
    with zipfile.ZipFile(tmp_path / "gpu-double.zip", "w") as archive:
        archive.writestr("ladder.json", double.NAME)
    assert made_with_the_double(tmp_path) == ["gpu-double.zip", "runs.json", "trace.json.gz"]


def test_the_ladder_is_complete_and_undisturbed():
    runs = find("cpu-quick")
    assert runs[0].stage == "baseline" and runs[-1].is_again
    assert len({run.session for run in runs}) == 1
    for run in runs:
        if run.status == "not_applicable":
            assert run.reason
            continue
        assert (run.status, run.disturbed) == ("ok", None), run.title
        assert run.samples_per_s and run.step_s and run.data_wait_s and run.ceiling_samples_per_s
        assert run.peak_memory_bytes and run.startup_s and run.losses
        assert run.mechanism and all(proof.ok for proof in run.mechanism)
        assert len(run.raw.block_samples_per_s) >= 5


def test_the_simulated_ladder_says_so_and_is_of_todays_model():
    again = "the model has changed: make recordings ARGS='--only simulated'"
    runs = find(str(record.FOLDER / record.SIMULATED))
    for run in runs:
        assert (run.device, run.status) == ("sim:v100", "ok"), run.reason
        assert run.simulated and run.simulated.band > 0 and not run.losses
        today = (str(constants().version), constants().digest)
        assert (run.simulated.model, run.simulated.constants) == today, again
    *_, row = tables.ladder(runs).rows
    texts = [*map(str, row)]
    assert any(text.startswith("~") for text in texts) and "~~" not in "".join(texts)


def test_the_traces_differ_by_the_wait_for_the_loader():
    """Chapter 02."""
    pair = [analyse(Trace(record.FOLDER / name)) for name in record.TRACES.values()]
    assert all(analysis.health == [] and len(analysis.steps) == 3 for analysis in pair)
    before, after = ((analysis.mean_us["dataloader"], analysis.mean_step_us) for analysis in pair)
    assert before[0] > 0.3 * before[1] and after[0] < 0.2 * before[0]
    assert before[1] - after[1] == pytest.approx(before[0] - after[0], rel=0.5)
    names = [{finding.bottleneck for finding in analysis.diagnosis} for analysis in pair]
    assert "data-bound" in names[0] - names[1]


def test_the_simulated_timeline_shows_a_copy_that_the_host_waits_for():
    """Chapters 03 and 09: the copy is a visible part of the step, and the host is blocked meanwhile."""
    analysis = analyse(Trace(record.FOLDER / record.TIMELINE))
    assert {problem.code for problem in analysis.health} == {"simulated"} and analysis.steps
    assert {finding.bottleneck for finding in analysis.diagnosis} == {"copy-bound"}
    assert analysis.mean_us["kernel"] > analysis.mean_us["memcpy"] > 0.1 * analysis.mean_step_us
