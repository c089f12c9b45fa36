"""Checkpoints: a code from the newest run of a chapter, and a list that finds slips and copies."""

import json

import pytest
from msgspec.structs import replace

from perfkit import notebook as pk
from perfkit.additions.checkpoint import codes
from perfkit.errors import InvalidValue
from perfkit.results.schema import Simulated
from perfkit.results.store import RunStore
from tests.support.cli import perfkit
from tests.unit.show.fake_runs import session


def stage(name, **changes):
    """A run of a stage that never ran."""
    (run,) = [run for run in session() if run.stage == name]
    return replace(run, **changes)


def code(chapter="02", **changes):
    return codes.of_run(chapter, stage(codes.STAGES[chapter], **changes))


def test_a_code_has_the_ratio_of_the_newest_run_of_its_chapter(data_dir):
    with pytest.raises(InvalidValue, match="no run of chapter 02"):
        pk.checkpoint("02")
    store, run = RunStore(), stage("data_loading")
    store.add(run)
    said = pk.checkpoint("02")
    assert said.startswith(f"02-{run.speedup('previous').ratio:.2f}-")
    (entry,) = codes.verify([f"Ada Lovelace: {said}"])
    assert entry == ("Ada Lovelace", "02", f"{run.speedup('previous').ratio:.2f}", "")
    with pytest.raises(InvalidValue, match="'99'"):
        pk.checkpoint("99")


def test_a_stage_that_cannot_act_and_the_plain_loop_have_no_ratio():
    assert code("01").startswith("01-done-")
    assert code("03", status="not_applicable", reason="no GPU").startswith("03-na-")


def test_a_prediction_is_marked():
    simulated = Simulated(gpu="V100", host="article", model="1", constants="c", band=0.2)
    run = next(run for run in session(gpu=True) if run.stage == "data_loading")
    found = codes.of_run("02", replace(run, simulated=simulated))
    assert found.startswith("02-sim")
    assert [entry.fault for entry in codes.verify([f"A {found}"])] == [""]


def test_every_slip_of_the_pen_is_found():
    right = code()
    for at, letter in enumerate(right):
        if letter in "-.":
            continue
        other = "1" if letter == "0" else "0"
        (entry,) = codes.verify([f"Ada {right[:at]}{other}{right[at + 1 :]}"])
        assert entry.fault, right[:at]


def test_a_list_may_have_comments_empty_lines_capitals_and_codes_in_any_place():
    lines = ["# the class", "", f"{code().upper()}\tAda", f"Bob, {code(id='another')}", "Carl forgot"]
    entries = [*codes.verify(lines)]
    assert [entry.name for entry in entries] == ["Ada", "Bob", "Carl forgot"]
    assert [bool(entry.fault) for entry in entries] == [False, False, True]
    assert "line 5" in entries[2].fault


def test_the_command_lists_who_is_done_and_fails_where_a_run_is_claimed_twice(tmp_path):
    file = tmp_path / "codes.txt"
    file.write_text(f"Ada {code()}\nBob {code(id='another')}\n", encoding="utf-8")
    done = perfkit("checkpoint", str(file), "--json", str(tmp_path / "out.json"))
    assert "Ada" in done.output and "count: 2 of 2" in done.output
    assert [entry[0] for entry in json.loads((tmp_path / "out.json").read_text())] == ["Ada", "Bob"]
    file.write_text(f"Ada {code()}\nBob {code()}\n", encoding="utf-8")
    done = perfkit("checkpoint", str(file), code=1)
    assert "the same run as Ada's" in done.output and "count: 1 of 2" in done.output
    file.write_text(f"# the class\nAda {code()}\n", encoding="utf-8-sig")
    assert "count: 1 of 1" in perfkit("checkpoint", str(file)).output, "a byte order mark is no line"


def test_a_list_that_is_missing_is_misuse_and_one_that_is_no_text_has_no_codes(tmp_path):
    assert "does not exist" in perfkit("checkpoint", str(tmp_path / "none.txt"), code=2).output
    file = tmp_path / "codes.png"
    file.write_bytes(b"\x89PNG\xff\xfe")
    assert "line 1 has no code" in perfkit("checkpoint", str(file), code=1).output
