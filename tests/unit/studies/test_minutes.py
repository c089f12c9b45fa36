"""How long chapters take: what counts, at the least and at the most; and that no chapter is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfkit.ladder.presets import PRESETS
from perfkit.studies.minutes import CHAPTERS, Chapter, Probe, minutes, probe
from perfkit.studies.plan import plan
from perfkit.worker import messages
from tests.unit.studies.fakes import FakeMachine, install

QUICK = replace(PRESETS["quick"], rounds=5, budget_s=60, limit_s=330)
ONE = Probe(start_s=10, block_s=2)


@pytest.mark.parametrize(
    ("chapter", "expected"),
    [
        (Chapter("reading"), (0, 0)),
        (Chapter("a single run", (1,)), (1, 1)),  # 10 + 5 * 2 * 2 s: with nothing to compare it ends there
        (Chapter("two and the A/A row", (2,)), (2, 3)),  # 30 + 3 * 10 * 2 s; 30 + 2 * 60 s
        (Chapter("a ladder", (10,)), (6, 6)),  # the limit
        (Chapter("more", (2, 1), 4), (6, 7)),  # 90 + 30 + 240 s; 150 + 30 + 240 s
    ],
    ids=lambda value: value.name if isinstance(value, Chapter) else "",
)
def test_the_least_and_the_most(chapter: Chapter, expected: tuple[int, int]) -> None:
    assert minutes(chapter, ONE, QUICK) == expected


def test_a_slow_machine_takes_its_least_number_of_rounds_even_beyond_the_limit() -> None:
    least, most = minutes(Chapter("a ladder", (10,)), replace(ONE, block_s=20), QUICK)
    assert least == most > QUICK.limit_s / 60


def test_a_probe_is_one_block_of_the_plain_loop(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    machine = install(monkeypatch, FakeMachine())
    where = plan("cifar_resnet18", "smoke", ["baseline"], device="cpu")
    one = probe(where)
    assert one.start_s >= 0 and one.block_s >= 0
    assert [type(command) for _, command in machine.asked] == [
        messages.Describe, messages.Train, messages.MeasureBlock,
    ]  # fmt: skip
    assert machine.children[0].recipe.batch_size == where.preset.batch_size
    assert machine.alive() == []


def test_every_chapter_that_measures_is_listed() -> None:
    sources = sorted((Path(__file__).parents[3] / "notebooks" / "src").glob("*.py"))
    measuring = [
        source.stem[:2] for source in sources if "of reading; nothing is measured" not in source.read_text()
    ]
    assert [chapter.name[:2] for chapter in CHAPTERS] == measuring[1:], "all but 00"
