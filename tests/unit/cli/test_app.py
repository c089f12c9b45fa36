"""What all commands share: their headings, their options, errors as one line with an exit code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from perfkit.cli import app as whole
from perfkit.cli.app import Output, command, names, parse_options
from perfkit.errors import InvalidValue, RunFailed
from perfkit.results.recordings import load as load_recording
from perfkit.results.store import RunStore

RECORDED = Path(__file__).parents[3] / "data" / "recordings" / "traces"
HEADINGS = {
    "Measure": {"run", "runs", "show", "report"},
    "Compare": {"compare", "parity", "attribute", "tune", "noise"},
    "Look inside": {"profile", "memory", "kernels", "syncs", "nsys", "trace"},
    "Script": {"watch", "patch", "export", "diff", "torchrun"},
    "Machine": {"doctor"},
}


def test_every_command_stands_under_its_heading_in_that_order() -> None:
    found: dict[str, set[str]] = {}
    for one in whole.registered_commands:
        assert one.callback is not None
        found.setdefault(str(one.rich_help_panel), set()).add(one.callback.__name__)
    assert found == HEADINGS
    assert list(found) == list(HEADINGS)


OTHERS = {"runs", "show", "report", "doctor", "watch", "patch"}
"""Commands that train nothing of perfkit's own."""


@pytest.mark.parametrize("name", sorted(set.union(*HEADINGS.values()) - OTHERS))
def test_a_command_that_trains_has_the_options_of_a_training(name: str) -> None:
    options = {option.name for option in get_command(whole).commands[name].params}  # type: ignore[attr-defined]
    if name not in ("trace", "torchrun"):
        assert options >= {"workload", "preset", "option", "device", "seed"}
    assert all(option.help for option in get_command(whole).commands[name].params)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("problem", "code", "line"),
    [
        (InvalidValue("no such stage", "Choose another"), 2, "perfkit: no such stage. Choose another"),
        (RunFailed("it crashed"), 1, "perfkit: it crashed"),
        (KeyboardInterrupt(), 130, "stopped"),
        (OSError(28, "No space left", "x.json"), 1, "No space left: x.json"),
        (BrokenPipeError(), 0, ""),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    problem: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise problem

    monkeypatch.setattr("os.dup2", lambda *_: None)  # stdout is pytest's
    own = typer.Typer()
    monkeypatch.setattr(sys.modules["perfkit.cli.app"], "app", own)
    command("Measure")(_named(fail))
    result = CliRunner().invoke(own, [])
    assert result.exit_code == code, result.output
    assert line in result.output
    assert len(result.output.splitlines()) <= 1


def _named(function: Callable[[], None]) -> Callable[[], None]:
    function.__doc__ = "Fails."
    return function


def test_options_are_read_as_json_or_as_text() -> None:
    assert parse_options(["image_size=64", "name=a=b", "on=true"]) == {
        "image_size": 64, "name": "a=b", "on": True,
    }  # fmt: skip
    with pytest.raises(InvalidValue, match="Write name=value"):
        parse_options(["x"])
    assert names("a, b,") == ["a", "b"]
    assert names(None) is None


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="cannot write"):
        Output(json_file=tmp_path / "none" / "x.json")
    assert Output(json_file=tmp_path / "x.json").json_file


def test_the_page_is_written_though_nobody_reads_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nobody_reads(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("perfkit.show.terminal.show", nobody_reads)
    monkeypatch.setattr("os.dup2", lambda *_: None)
    page = tmp_path / "x.html"
    trace = str(RECORDED / "photos-baseline.pt.trace.json.gz")
    assert CliRunner().invoke(whole, ["trace", trace, "--html", str(page)]).exit_code == 0
    assert re.search("<canvas", page.read_text())


def test_a_session_is_listed_newest_first_and_shown_by_the_beginning_of_its_id(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RunStore()
    runs = load_recording(RECORDED.parent / "cpu-quick.json").runs[:2]
    for run in runs:
        store.add(run)
    monkeypatch.setenv("COLUMNS", "140")
    listed = CliRunner().invoke(whole, ["runs"]).output
    assert listed.index(runs[1].id) < listed.index(runs[0].id)
    shown = CliRunner().invoke(whole, ["show", runs[1].id[:-1]]).output
    assert "1 worker processes alive" in shown


def test_a_recording_opens_as_stored_runs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    file = str(RECORDED.parent / "cpu-quick.json")
    shown = CliRunner().invoke(whole, ["show", file])
    assert shown.exit_code == 0
    assert shown.output.startswith("Recorded 20")
    recorded = load_recording(Path(file)).runs
    assert all(run.title in shown.output for run in recorded)
    stages = json.loads(CliRunner().invoke(whole, ["show", file, "--json"]).output)["stages"]
    assert [stage["id"] for stage in stages] == [run.id for run in recorded]
    absent = CliRunner().invoke(whole, ["show", "none.json"])
    assert absent.exit_code == 2
    assert "none.json" in absent.output
