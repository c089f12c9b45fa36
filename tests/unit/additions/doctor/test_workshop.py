"""What a teacher looks at before the room is full."""

import re
from pathlib import Path

import pytest

from perfkit.additions.doctor import checkup, workshop
from perfkit.additions.doctor.checkup import HealthCheck
from perfkit.ladder.catalogue import PRESETS
from perfkit.machine import cores
from perfkit.machine.cores import CpuTimes
from perfkit.show import terminal
from perfkit.studies import planning
from perfkit.studies.sources import Progress

SOURCES = Path(__file__).parents[4] / "notebooks" / "src"


def test_the_stages_of_a_chapter_are_those_that_its_panels_measure():
    for chapter in set(workshop.CHAPTERS.values()):
        names = [name for name, its in workshop.CHAPTERS.items() if its == chapter]
        (source,) = SOURCES.glob(f"{chapter}_*.py")
        code = "\n".join(
            line for line in source.read_text(encoding="utf-8").splitlines() if not line.startswith("#")
        )
        assert sorted(re.findall(r'StagePanel\("(\w+)"', code)) == sorted(names)


def test_chapter_02_has_as_many_panels_and_recipes_as_is_reckoned_with():
    text = (SOURCES / "02_data_loading.py").read_text(encoding="utf-8")
    panels = re.findall(r"^\w+ = pk\.(Stage|Recipe)Panel\(", text, re.MULTILINE)
    assert panels == ["Stage"] * workshop.PANELS, "of other panels, count the recipes"
    assert workshop.SIDES == 2 * workshop.PANELS, "a stage and its baseline"


@pytest.mark.parametrize(
    ("outside_s", "busiest", "status", "words"),
    [
        (0.1, ("other guests of the same host", 0.0), "green", "5% of the cores now"),
        (1.2, ("chrome", 0.5), "amber", "60% of the cores now (chrome 50%)"),
        (
            1.2,  # in a container the neighbours' time is seen, and their processes are not
            ("jupyter-lab", 0.1),
            "amber",
            "60% of the cores now (many short-lived ones, or ones that cannot be seen from here)",
        ),
    ],
)
def test_what_others_take_is_told(monkeypatch, outside_s, busiest, status, words):
    moments = iter([CpuTimes(0.0, 0.0), CpuTimes(2.0, outside_s)])
    monkeypatch.setattr(cores, "cpu_times", lambda: next(moments))
    monkeypatch.setattr(cores, "usable_cores", lambda: 2)
    monkeypatch.setattr(cores, "affinity", lambda: [0, 1])
    monkeypatch.setattr(cores.OtherPrograms, "busiest", lambda programs: busiest)
    found = workshop.other_programs(seconds=0.0)
    assert found.status == status and words == found.detail


def test_chapters_that_need_a_gpu_are_named_with_the_reason():
    found = workshop.absent(planning.plan(device="cpu", preset="quick"))
    assert "03 (pinning): " in found.detail and "needs a CUDA device" in found.detail
    assert "02 (data_loading)" not in found.detail


def test_the_minutes_of_chapter_02_follow_from_a_trial():
    quick = PRESETS["quick"].rule
    found = workshop.chapter_02(trial_s=20.0, rule=quick)
    least = (
        workshop.PANELS * 20 + workshop.SIDES * (quick.warmup_s + quick.rounds * quick.slice.seconds)
    ) / 60
    assert (
        found.detail.startswith(f"{least:.1f} to {quick.budget.stage_s / 60:.1f} min")
        and found.status == "green"
    )
    assert workshop.chapter_02(trial_s=100.0, rule=quick).status == "amber"


def test_nothing_is_tried_on_a_machine_that_cannot_train(monkeypatch):
    problem = HealthCheck("torch", "missing", "Install it", blocking=True)
    monkeypatch.setattr(workshop.checkup, "checkup", lambda: [problem])
    monkeypatch.setattr(workshop, "other_programs", lambda seconds: HealthCheck("other programs", "0%"))
    found = workshop.checks(planning.plan(device="cpu", preset="smoke"), Progress())
    assert [check.name for check in found] == ["Python", "torch", "other programs"]
    text = terminal.text(checkup.sections("Ready?", found, []))
    assert "red" in text and "green" in text
