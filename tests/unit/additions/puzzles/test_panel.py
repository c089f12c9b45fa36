"""Puzzles without a process: what is refused before one starts, and what is said if it ends by itself."""

from types import SimpleNamespace

import pytest

from perfkit.additions.puzzles import PuzzleVerdict, panel
from perfkit.additions.puzzles.panel import Puzzle, left_out, mystery, source_of, tasks
from perfkit.errors import InvalidValue, RunFailed

STARTER = "def double(x):\n    return x\n"
PUZZLE = Puzzle(
    "double it", "01_baseline", 1, 5, "Write `double`.", STARTER, ("a", "b", "c"), "assert double(2) == 4"
)


@pytest.fixture
def asked(monkeypatch):
    """The `calls` that a process would get, and its `answer`: an exception is raised."""
    process = SimpleNamespace(calls=[], answer=PuzzleVerdict(True, "Right", ["2 became 4"]))

    def call(*given, timeout_s):
        process.calls.append(given)
        if isinstance(process.answer, Exception):
            raise process.answer
        return process.answer

    monkeypatch.setattr(panel, "call", call)
    return process


@pytest.mark.parametrize(
    "same", [STARTER, "# mine\ndef double(x): return x", f"import math\n{STARTER}print(1)"]
)
def test_the_starter_in_any_layout_is_not_judged(same, asked):
    assert PUZZLE.check(same).sentence == "This is still the starter: your turn" and asked.calls == []


def test_an_answer_is_judged_with_the_puzzle_s_checks(asked):
    answer = "def double(x):\n    return 2 * x\n"
    assert repr(PUZZLE.check(answer)) == "✓ Right.\n2 became 4"
    assert asked.calls == [("perfkit.additions.puzzles.judge:judge", PUZZLE.checks, answer, STARTER)]


def test_a_process_that_ends_by_itself_is_an_answer_that_is_wrong(asked):
    asked.answer = RunFailed("it ended with exit status 3", "")
    verdict = PUZZLE.check("def double(x):\n    return 3 * x\n")
    assert not verdict.right and "within 60 seconds" in verdict.sentence
    assert repr(verdict).startswith("✗ Not yet: Your answer ended the process") and "exit status 3." in repr(
        verdict
    )


@pytest.mark.parametrize("given", [(), (3,), (len,), ("a", "b")])
def test_what_no_cell_has_defined_is_refused(given):
    with pytest.raises(InvalidValue, match="check was given"):
        source_of(given)


def test_only_what_is_written_as_texts_is_left_out():
    assert left_out('import torch\nLEFT_OUT = {"compiled": "0.9x as fast"}') == {"compiled": "0.9x as fast"}
    for other in ("", "LEFT_OUT = make()", "LEFT_OUT = ['compiled']", "LEFT_OUT = {", "OTHER = {'a': 'b'}"):
        assert left_out(other) == {}


def test_every_puzzle_is_complete_and_its_code_can_be_read():
    assert len(tasks()) > 10
    for name, task in tasks().items():
        compile(task.checks, name, "exec")
        compile(task.starter, name, "exec")
        assert task.title and task.statement and 1 <= task.stars <= 3 and task.minutes and task.hints, name


def test_a_mystery_is_copied_once_and_asks_for_an_edit(tmp_path, monkeypatch, asked):
    monkeypatch.chdir(tmp_path)
    name = next(name for name, task in tasks().items() if task.chapter == panel.MYSTERIES)
    file = tmp_path / f"my_{name}.py"
    assert mystery(name) is tasks()[name] and file.read_text(encoding="utf-8") == tasks()[name].starter
    file.write_text("def main():\n    pass\n")
    assert mystery(name).right and asked.calls[-1][2] == "def main():\n    pass\n"
    assert file.read_text() == "def main():\n    pass\n", "it is the learner's now"
