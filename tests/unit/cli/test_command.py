"""What all commands share: a list that imports none of them, options, files, errors with an exit code."""

import os
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
import typer
from msgspec import structs
from typer.main import get_command
from typer.testing import CliRunner

import perfkit
from perfkit.cli import COMMANDS, app, options
from perfkit.cli import run as commands
from perfkit.cli.command import as_app
from perfkit.errors import InvalidValue, PerfkitError, StoreError
from perfkit.ladder.catalogue import Budget
from perfkit.results import recordings
from perfkit.results.comparison import Comparison
from perfkit.results.rounds import Pairing
from perfkit.results.schema import Raw
from perfkit.results.store import RunStore, keep
from perfkit.studies import compare as comparing
from tests.unit.results.test_run import run as measured

ERRORS = [
    (InvalidValue("no such stage", "Choose another"), 2, "perfkit: no such stage. Choose another\n"),
    (KeyboardInterrupt(), 130, "stopped\n"),  # as `watch`, of which nothing is kept
    (KeyboardInterrupt("it is kept"), 130, "stopped; it is kept\n"),
    (OSError(28, "No space left", "x.json"), 1, "perfkit: x.json: No space left. Free space on that disk\n"),
    (OSError(28, "No space left"), 1, "perfkit: standard output: No space left. Free space on that disk\n"),
    (OSError(36, "Name too long", "x.json"), 1, "perfkit: x.json: Name too long. Choose a shorter name\n"),
    (BrokenPipeError(), 141, ""),
    (ConnectionRefusedError(111, "Connection refused"), 1, ""),  # a bug: Python shows its traceback
]  # fmt: skip


def run(*arguments, code=0, columns=140):
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns)})
    assert result.exit_code == code, result.output
    return result.output


def test_the_help_names_every_command_and_imports_none():
    code = (
        "import sys; from perfkit.cli import app; app(['--help'], prog_name='perfkit', standalone_mode=False);"
        "print([m for m in ('torch', 'numpy', 'rich', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *listed, loaded = done.stdout.splitlines()
    title = "Commands (perfkit COMMAND --help lists the options of one):"
    commands = listed[listed.index(title) + 1 :]
    names = [line.split()[0] for line in commands if line]
    assert sorted(names) == sorted(COMMANDS)
    assert len(names) <= 17, "they are read in one look"
    assert (loaded, listed) == ("[]", run(code=2).splitlines()), "alone it shows its help"
    assert "Did you mean 'runs'? Allowed: run, runs, " in run("rums", code=2)


@pytest.mark.integration
def test_no_command_and_nothing_of_a_notebook_imports_torch():
    """That takes two seconds of a core. What trains, or is watched, imports it in a process of its own."""
    code = (
        "import sys; from perfkit import lookup, notebook; from perfkit.cli import COMMANDS;"
        "[lookup.load(place) for place, _ in COMMANDS.values()];"
        "[getattr(notebook, name) for name in dir(notebook)]; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_describes_itself_and_each_option(name):
    built = get_command(app).get_command(None, name)
    assert built.help
    assert all(option.help for option in built.params)
    files = {opt for option in built.params for opt in option.opts if "FILE" in str(option.metavar)}
    assert files <= {"file", "--json", "--html", "-o"}, "one way to write each kind of file"


@pytest.mark.parametrize(("problem", "code", "text"), ERRORS)
def test_an_error_is_one_line_and_an_exit_code(problem, code, text, monkeypatch):
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # stdout is pytest's

    def fail():
        raise problem

    result = CliRunner().invoke(as_app("fail", fail), [])
    assert (result.exit_code, result.output) == (code, text)


def test_a_warning_is_one_line_without_its_place_in_the_code():
    result = CliRunner().invoke(as_app("warn", lambda: warnings.warn("mind the gap", stacklevel=2)), [])
    assert (result.exit_code, result.output) == (0, "perfkit: mind the gap\n")


def test_options_are_read_as_json_or_as_text():
    texts = ["image_size=64", "name=a=b", "on=true"]
    assert options.parse_options(texts) == {"image_size": 64, "name": "a=b", "on": True}
    with pytest.raises(InvalidValue, match="Write name=value"):
        options.parse_options(["x"])
    assert options.names("a, b,") == ["a", "b"]


def test_without_a_terminal_waiting_is_told_once(capsys):
    with options.progress() as follow:
        follow.wait("another run uses cpu")
        follow.wait("another run uses cpu")
        follow.phase("measuring")
    assert capsys.readouterr().err == "waiting: another run uses cpu\n"


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(tmp_path):
    for path in (tmp_path / "none" / "x.json", tmp_path):
        with pytest.raises(InvalidValue, match="cannot write"):
            options.OutputOptions(json_file=path)
    with pytest.raises(PerfkitError, match="/dev/full: No space left"):
        options.write(Path("/dev/full"), "x")


def test_two_results_in_one_file_are_refused(tmp_path):
    output = options.OutputOptions(json_file=tmp_path / "r.json")
    with pytest.raises(InvalidValue, match=r"two results were directed to .*r.json"):
        output.check_files(tmp_path / "." / "r.json")
    output.check_files(tmp_path / "other.json")


def test_a_device_is_written_as_it_is_whatever_its_folder_allows(monkeypatch):
    """As it is for who is not root: /dev cannot be written, and /dev/null can."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) == Path("/dev/null"))
    options.OutputOptions(json_file=Path("/dev/null"))
    with pytest.raises(InvalidValue, match="cannot write /dev/other"):
        options.OutputOptions(json_file=Path("/dev/other"))


def test_a_link_to_a_file_stays_one(tmp_path):
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "r.json", tmp_path / "r.json"
    file.write_text("old")
    link.symlink_to(file)
    options.write(link, "new")
    assert link.is_symlink() and file.read_text() == "new"


@pytest.mark.parametrize(("verdict", "code"), [(None, 1), (0, 0), (3, 3)])
def test_a_result_is_shown_and_a_file_that_fails_takes_no_other_with_it(tmp_path, capsys, verdict, code):
    output = options.OutputOptions(json_file=tmp_path / "r.json", html_file=Path("/dev/full"))
    with pytest.raises(typer.Exit) as ended:
        output.deliver("it", ["what a reader sees"], {"a": 1}, verdict=verdict)
    out, err = capsys.readouterr()
    assert ended.value.exit_code == code
    assert "what a reader sees" in out and "perfkit: /dev/full: No space left" in err
    assert (tmp_path / "r.json").stat().st_size


def test_a_picture_on_standard_output_has_it_alone(capfdbinary):
    picture = b"\x89PNG\xff"
    options.OutputOptions().deliver("it", ["what a reader sees"], {}, out=Path("-"), content=lambda: picture)
    out, err = capfdbinary.readouterr()
    assert out == picture and b"what a reader sees" in err


SIDES = ("compare", "workers=1", "workers=2", "--device", "cpu")
PAIRING = Pairing([1.0] * 9, [1.0] * 9, against="a", role="previous", interleaved=True)


@pytest.mark.parametrize(("more", "code"), [([], 1), (["--fail-if-slower", "50%"], 0)])
@pytest.mark.parametrize("broken", ["add", "_open"])
def test_a_store_that_cannot_be_written_does_not_decide_a_gate(data_dir, monkeypatch, more, code, broken):
    def compared(a, b, plan, earlier, progress, store):
        keep(store, measured("a"))
        return Comparison(measured("a"), measured("b"), PAIRING)

    monkeypatch.setattr(comparing, "compare_candidates", compared)
    monkeypatch.setattr(RunStore, broken, Mock(side_effect=StoreError("the disk is full", "Free it")))
    assert "the disk is full. Free it" in run(*SIDES, *more, code=code)


def test_a_gate_takes_as_many_rounds_as_a_verdict_and_a_room_that_spoils_neither_side(data_dir, monkeypatch):
    sides = measured("a"), measured("b")
    few = structs.replace(PAIRING, own_samples_per_s=[1.0], other_samples_per_s=[1.0])
    spoiled = structs.replace(PAIRING, interleaved=False, disturbed=[0.9] * 9)
    slower = structs.replace(PAIRING, own_samples_per_s=[0.4] * 9)
    cases = [
        (PAIRING, 0, "passes", ""),
        (slower, 1, "slower", "B is slower than A by more than 50.0%"),
        (few, 3, "unclear", "from 1 round, but a verdict needs 5. Add rounds with --more"),
        (spoiled, 3, "unclear", "which took turns. Add rounds with --more"),
    ]
    for pairing, code, outcome, said in cases:
        result = Comparison(*sides, pairing)
        assert result.gate(0.5) == outcome
        monkeypatch.setattr(comparing, "compare_candidates", lambda *_, result=result: result)
        assert said in run(*SIDES, "--fail-if-slower", "50%", code=code)
    assert Comparison(*sides, few).gate(0.5, fewest=1) == "passes", "whole runs are one round"


def test_a_comparison_on_cores_that_others_took_says_so(data_dir, monkeypatch):
    """A worker was 11 times as fast there, and the line was that of a quiet machine."""
    quiet = Comparison(measured("a"), measured("b"), PAIRING)
    busy = structs.replace(quiet, b=measured("b", raw=Raw(disturbed=[0.6] * 9)))
    for found, said in ((quiet, "; 9 interleaved rounds\n"), (busy, "took 60% of the cores meanwhile\n")):
        monkeypatch.setattr(comparing, "compare_candidates", lambda *_, found=found: found)
        assert run(*SIDES).endswith(said)


@pytest.mark.parametrize("gate", [(), ("--fail-if-slower", "50%")])
def test_a_comparison_that_is_stopped_shows_and_writes_what_was_measured(
    gate, data_dir, monkeypatch, tmp_path
):
    """Nothing was shown of a comparison that was stopped a second before its end, nor that it is kept."""
    found = Comparison(measured("a"), measured("b"), PAIRING)

    def stopped(a, b, plan, earlier, progress, store):
        progress.found = found
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "compare_candidates", stopped)
    file = tmp_path / "found.json"
    text = run(*SIDES, *gate, "--json", str(file), code=130)
    assert text.startswith("stopped; what was measured is kept: go on with --more\n")
    assert found.describe().strip() in text
    assert msgspec.json.decode(file.read_bytes())["rounds"] == 9


def test_a_comparison_that_is_stopped_before_its_first_round_says_so(data_dir, monkeypatch):
    monkeypatch.setattr(comparing, "compare_candidates", Mock(side_effect=KeyboardInterrupt))
    assert run(*SIDES, code=130) == "stopped\n"


def test_stored_runs_are_listed_newest_first_and_shown_by_run_and_session(data_dir):
    assert "no run is stored yet" in run("show", code=2)
    recorded = recordings.find("cpu-quick")
    runs = [run for run in recorded if run.stage in ("baseline", "data_loading")]
    for each in runs:
        RunStore().add(each)
    listed = run("runs")
    assert listed.index(runs[1].id) < listed.index(runs[0].id)
    assert "worker processes alive: 1" in run("show", runs[1].id[:-1])
    newest = run("show")
    assert newest == run("show", runs[0].session)
    assert newest.index("\nbaseline  ") < newest.index("\ndata loading  ")
    played = run("show", "recorded:cpu-quick")
    assert "Not measured on this machine." in played and all(each.title in played for each in recorded)


def test_a_run_that_cannot_be_read_is_told_by_every_command_that_reads_it(data_dir):
    runs = [run for run in recordings.find("cpu-quick") if run.stage in ("baseline", "data_loading")]
    store = RunStore()
    for each in runs:
        store.add(each)
    with sqlite3.connect(store.path) as database:
        database.execute("UPDATE runs SET body = '{}' WHERE id = ?", (runs[1].id,))
    database.close()
    for command in (("runs",), ("show",), ("show", runs[0].session)):
        text = run(*command)
        assert f"left out: run {runs[1].id} is not a run" in " ".join(text.split()), command
        assert "baseline" in text


def test_what_was_measured_is_written_and_shown_where_the_store_cannot_keep_it(
    tmp_path, data_dir, monkeypatch
):
    runs = recordings.find("cpu-quick")[:2]

    def climbed(plan, store, progress):
        for each in runs:
            keep(store, each)
        return runs

    monkeypatch.setattr(commands, "climb", climbed)
    monkeypatch.setattr(RunStore, "add", Mock(side_effect=StoreError("the disk is full", "Free it")))
    files = {"-o": tmp_path / "r.json", "--json": tmp_path / "d.json", "--html": tmp_path / "p.html"}
    monkeypatch.setattr(recordings, "content", lambda runs: b"{}")
    text = run(
        "run", "--workload", "photos", *map(str, (part for pair in files.items() for part in pair)), code=1
    )
    assert all(file.stat().st_size for file in files.values())
    assert runs[1].title in text and "was measured, but not stored: the disk is full. Free it" in text


def test_a_ladder_that_is_stopped_before_its_first_round_leaves_no_recording(tmp_path, monkeypatch):
    def climbed(plan, store, progress):
        progress.finish(measured("r0", status="cancelled", reason="stopped"))
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "climb", climbed)
    text = run("run", "--workload", "photos", "--device", "cpu", "-o", str(tmp_path / "r.json"), code=130)
    assert "cancelled" in text and list(tmp_path.iterdir()) == []
    assert text.endswith("stopped; what was finished is kept (perfkit runs)\n")


def test_a_budget_is_for_the_whole_ladder_on_a_noisy_machine_too(monkeypatch):
    asked = []

    def climbed(plan, store, progress):
        asked.append(plan.rule)
        raise InvalidValue("enough", "")

    monkeypatch.setattr(commands, "climb", climbed)
    run("run", "--workload", "photos", "--device", "cpu", "--preset", "quick", "--budget", "90", code=2)
    run("run", "--workload", "photos", "--device", "cpu", "--preset", "quick", code=2)
    assert [rule.budget for rule in asked] == [Budget(60, 90, 90), Budget(60, 345, 560)]


@pytest.mark.parametrize(("stages", "each_s"), [("pinning", 600), ("pinning,amp", 300)])
def test_a_large_budget_is_that_of_few_stages_too(stages, each_s, monkeypatch):
    """They ended after a minute each, as they do without a budget."""
    asked = []

    def climbed(plan, store, progress):
        asked.append(plan.rule.budget)
        raise InvalidValue("enough", "")

    monkeypatch.setattr(commands, "climb", climbed)
    run(*LADDER, stages, "--preset", "quick", "--budget", "600", code=2)
    assert asked == [Budget(each_s, 600, 600)]
    assert asked[0].seconds(stages.count(",") + 1) == 600


@pytest.mark.parametrize(
    "given", [["--seed", "1", "--seed", "2"], ["--workload", "photos", "--workload=tiny_gpt"]]
)
def test_an_option_that_is_given_twice_is_refused(given):
    assert f"{given[0]} was given 2 times" in run("export", *given, code=2)


LADDER = ("run", "--device", "cpu", "--stages")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((*LADDER, "amp,compile", "--keep", "pinning"), "unknown stage of this ladder 'pinning'"),
        ((*LADDER, "amp", "--keep-all"), "nothing is decided on one stage alone"),
        ((*LADDER, "amp,compile", "--keep", "amp", "--keep-all"), "so --keep would do nothing"),
        (
            (*LADDER, "amp", "--preset", "smoke", "--budget", "9"),
            "smoke takes 3 rounds of each stage, however",
        ),
        (("compare", "amp", "amp", "--budget", "inf"), "--budget was given inf. Give a finite number"),
        ((*LADDER, "amp", "--seed", "4294967296"), "Input should be less than or equal to 4294967295"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(given, words):
    assert words in " ".join(run(*given, code=2).split())


def test_standard_output_has_one_document():
    with pytest.raises(InvalidValue, match="standard output"):
        options.OutputOptions(Path("-"), Path("-"))


@pytest.mark.parametrize("file", ["json_file", "html_file"])
def test_a_document_on_standard_output_has_it_alone(file, capsys):
    options.OutputOptions(**{file: Path("-")}).deliver("it", ["what a reader sees"], {"a": 1})
    out, err = capsys.readouterr()
    assert "what a reader sees" in err
    assert out.strip().endswith("}") or out.strip().endswith("</html>")


def test_the_version_is_told_without_a_command():
    assert CliRunner().invoke(app, ["--version"]).output == f"perfkit {perfkit.__version__}\n"
