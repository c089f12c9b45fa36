"""`make recordings` keeps what was measured on a quiet machine, and all of it or nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from docs import quiet, record
from docs.quiet import Look, Machine, Reading, Refused, Used
from docs.record import Part

Make = Callable[[Path, threading.Event], str]


class Pretended(Machine):
    """A machine on which other programs take these shares, look by look, and then nothing any more."""

    def __init__(self, *shares: float, then: float = 0.0) -> None:
        super().__init__()
        self.shares, self.then, self.drained = list(shares), then, threading.Event()

    def start(self) -> None:
        pass

    def look(self, ended: threading.Event) -> Look:
        share = self.shares.pop(0) if self.shares else self.then
        if not self.shares:
            self.drained.set()
            ended.wait(0.001)
        return Look(share, "python -c busy (process 7)" if share else "")

    def facts(self) -> dict[str, Any]:
        return {"commit": "c0ffee", "cpu": "pretended"}

    def conditions(self) -> dict[str, Any]:
        return {"load_average": [0.1, 0.1, 0.1]}


def part(name: str, machine: Pretended, make: Make | None = None, **more: Any) -> Part:
    """A part with one file, which is made once the machine's shares have all been looked at."""

    def write(folder: Path, cancelled: threading.Event) -> str:
        assert machine.drained.wait(10)
        (folder / f"{name}.txt").write_text("new")
        return ""

    return Part(name, (f"{name}.txt",), make or write, **more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "recordings").mkdir()
    for name in ("a", "b"):
        (tmp_path / "recordings" / f"{name}.txt").write_text("old")
    return tmp_path / "recordings"


def contents(folder: Path) -> dict[str, str]:
    """The files below the folder's parent: nothing may be left beside it either."""
    return {str(f.relative_to(folder.parent)): f.read_text() for f in folder.parent.rglob("*") if f.is_file()}


def recorded(machine: Pretended, folder: Path, *parts: Part) -> tuple[dict[str, Any], list[str]]:
    lines: list[str] = []
    record.record(parts, folder, machine, "python -m docs.record", lines.append)
    return json.loads((folder / "provenance.json").read_text())["parts"], lines


def test_a_quiet_machine_is_recorded_with_its_conditions(folder: Path) -> None:
    machine = Pretended(0.0, 0.01, 0.02)
    parts, _ = recorded(machine, folder, part("a", machine))
    assert (folder / "a.txt").read_text() == "new"
    assert (folder / "b.txt").read_text() == "old"
    about = parts["a"]
    assert about["commit"] == "c0ffee" and about["machine"]["cpu"] == "pretended"
    assert about["command"] == "python -m docs.record" and about["attempts"] == 1
    assert about["conditions"]["before"] and about["conditions"]["after"]
    assert about["taken_by_others"]["largest"] == 0.02
    assert about["sha256"]["a.txt"] == record.digest(folder / "a.txt")
    assert not [name for name in contents(folder) if name.startswith(".")]


def test_a_busy_machine_is_refused_before_anything_is_measured(folder: Path) -> None:
    before, made = contents(folder), []
    machine = Pretended(then=0.48)
    never = part("a", machine, lambda *_: str(made.append(1)))
    with pytest.raises(Refused, match=r"not quiet: other programs take 48% of the cores \(python -c busy"):
        recorded(machine, folder, never)
    assert not made
    assert contents(folder) == before


def test_a_machine_that_becomes_quiet_is_waited_for(folder: Path) -> None:
    machine = Pretended(0.5, 0.0, 0.5, 0.0)
    _, lines = recorded(machine, folder, part("a", machine))
    assert any("waiting: other programs take 50%" in line for line in lines)
    assert (folder / "a.txt").read_text() == "new"


def test_a_part_that_was_disturbed_is_made_again(folder: Path) -> None:
    machine = Pretended(0.0, 0.0, 0.3)
    parts, lines = recorded(machine, folder, part("a", machine))
    assert parts["a"]["attempts"] == 2
    assert parts["a"]["taken_by_others"]["largest"] == 0.0
    assert any("disturbed, other programs took 30%" in line for line in lines)


def test_disturbed_every_time_it_is_refused_and_nothing_is_written(folder: Path) -> None:
    before = contents(folder)
    machine = Pretended(*[0.0, 0.0, 0.3] * 3, then=0.0)
    stops = part("a", machine, lambda folder, cancelled: str(cancelled.wait(10)))
    with pytest.raises(Refused, match=r"a: disturbed 3 times; .*python -c busy"):
        recorded(machine, folder, stops)
    assert contents(folder) == before


def test_a_ladder_measures_disturbed_blocks_again_and_stops_when_it_does_not_end(folder: Path) -> None:
    machine = Pretended(0.0, 0.0, 0.3, 0.0)
    parts, _ = recorded(machine, folder, part("a", machine, any_window=False))
    assert parts["a"]["attempts"] == 1
    assert parts["a"]["taken_by_others"]["largest"] == 0.3
    loud = Pretended(*[0.0, 0.0, *[0.3] * record.GIVE_UP_AFTER] * 3)
    stops = part("a", loud, lambda folder, cancelled: str(cancelled.wait(10)), any_window=False)
    with pytest.raises(Refused, match="disturbed 3 times"):
        recorded(loud, folder, stops)


def test_a_result_that_says_it_was_disturbed_is_made_again(folder: Path) -> None:
    machine = Pretended()
    answers = iter(["AMP was measured beside others", ""])

    def make(folder: Path, cancelled: threading.Event) -> str:
        (folder / "a.txt").write_text("new")
        return next(answers)

    parts, lines = recorded(machine, folder, part("a", machine, make, any_window=False))
    assert parts["a"]["attempts"] == 2
    assert "a: disturbed, AMP was measured beside others" in lines


def test_all_parts_or_none(folder: Path) -> None:
    before, machine = contents(folder), Pretended()

    def fails(folder: Path, cancelled: threading.Event) -> str:
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="disk"):
        recorded(machine, folder, part("a", machine), part("b", machine, fails))
    assert contents(folder) == before


def test_what_does_not_hold_what_the_text_says_is_not_kept(folder: Path) -> None:
    before, machine = contents(folder), Pretended()

    def refuse(stage: Path) -> None:
        assert (stage / "a.txt").read_text() == "new" and (stage / "provenance.json").exists()
        raise Refused("the operators differ")

    with pytest.raises(Refused, match="operators"):
        record.record([part("a", machine)], folder, machine, "record", lambda line: None, refuse)
    assert contents(folder) == before


def test_the_old_folder_stays_if_the_new_one_cannot_take_its_place(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, machine, rename = contents(folder), Pretended(), Path.rename

    def refuse_the_new(path: Path, target: Path) -> Path:
        if target == folder and "replaced" not in path.name:
            raise OSError("another file system")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_the_new)
    with pytest.raises(OSError, match="another"):
        recorded(machine, folder, part("a", machine))
    assert contents(folder) == before


def test_files_that_no_part_makes_are_removed_once_all_parts_are_known(folder: Path) -> None:
    machine = Pretended()
    quick = [part(one.name, machine, measures=False) for one in record.PARTS]
    recorded(machine, folder, quick[0])
    assert (folder / "a.txt").exists()
    parts, _ = recorded(machine, folder, *quick[1:])
    assert parts.keys() == {one.name for one in record.PARTS}
    assert {file.name for file in folder.iterdir()} == {"provenance.json", *(f"{p}.txt" for p in parts)}


def test_what_is_shipped_names_a_commit() -> None:
    with pytest.raises(Refused, match="Commit them first"):
        record._require_commit("c0ffee-dirty", record.FOLDER)
    record._require_commit("c0ffee-dirty", Path("scratch"))
    record._require_commit("c0ffee", record.FOLDER)


def test_an_unknown_part_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        record.main(["--only", "traces,tea"])
    assert "no part tea. Allowed: traces, ladder, simulated, pictures" in capsys.readouterr().err


# ---------------------------------------------------------------- whose CPU time it is


def reading(busy: float, own: dict[int, Used], others: dict[int, float], steal: float = 0.0) -> Reading:
    programs = {(pid, 0.0): (f"program {pid}", seconds) for pid, seconds in others.items()}
    return Reading(0.0 if busy == 0 else 10.0, busy, steal, {(p, 0.0): u for p, u in own.items()}, programs)


def test_own_processes_do_not_count_whether_they_live_end_or_begin() -> None:
    before = reading(0.0, {1: Used(1, 0), 2: Used(3, 0)}, {})
    # The first used 2 s; the second used 1 s more and ended; a third came and went with 0.5 s.
    now = reading(3.5, {1: Used(3, 4.5)}, {})
    assert quiet.taken(before, now).share == pytest.approx(0.0)


def test_a_process_that_nobody_waited_for_hides_no_other_program() -> None:
    before = reading(0.0, {1: Used(1, 0), 2: Used(50, 0)}, {9: 0.0})
    now = reading(5.0, {1: Used(3, 0)}, {9: 3.0})
    look = quiet.taken(before, now)
    assert look.share == pytest.approx(0.3)
    assert look.who.startswith("program 9 (process 9)")


def test_other_guests_and_programs_of_other_containers_count() -> None:
    look = quiet.taken(reading(0.0, {}, {}), reading(1.0, {}, {}, steal=1.0))
    assert look.share == pytest.approx(0.2)
    assert not look.quiet
    assert "cannot be seen" in look.who


def test_children_are_ones_own() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        now = quiet.read()
        child.communicate(b"\n")
    assert {os.getpid(), child.pid} <= {pid for pid, _ in now.own}
    assert not now.own.keys() & now.others.keys()
