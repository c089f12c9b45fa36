"""Commands of additions, and what commands of the core refuse where an addition measures."""

import pytest

from perfkit.errors import InvalidValue
from perfkit.studies.sources import Plan
from tests.unit.cli.test_command import run

PLAYED = ("run", "--device", "recorded:cpu-quick")


@pytest.mark.parametrize("command", ["profile", "memory"])
def test_a_look_at_steps_says_that_it_waits_for_another_measurement(command, monkeypatch):
    def waits(progress, study):
        progress.wait("a notebook uses the cores")
        raise InvalidValue("enough")

    monkeypatch.setattr(Plan, "open", lambda plan, progress, study: waits(progress, study))
    output = run(command, "--device", "cpu", "--preset", "smoke", code=2)
    assert "waiting: a notebook uses the cores" in output


@pytest.mark.parametrize("command", ["watch", "referee", "patch", "scale"])
def test_an_option_of_the_script_is_told_its_place(command):
    text = " ".join(run(command, "train.py", "--epochs", "3", code=2, columns=30).split())
    assert text.endswith("No such option: --epochs. A script's own options follow after --")
    assert "Possible: --budget" in run(command, "train.py", "--bugdet=9", code=2)
    assert "follow after" not in run("run", "--epochs", "3", code=2), "it has no script"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((*PLAYED, "--keep", "amp"), "nothing is decided by recorded:cpu-quick"),
        ((*PLAYED, "--keep-all"), "Leave out --keep and --keep-all"),
        ((*PLAYED, "--budget", "9"), "nothing is measured on recorded:cpu-quick"),
        ((*PLAYED, "--timeout", "9"), "Leave out --timeout and --budget"),
        ((*PLAYED, "--seed", "1"), "was recorded with its own seed"),
        ((*PLAYED, "--host", "ideal"), "was recorded on its own host"),
        ((*PLAYED, "-o", "r.json"), "is a recording already"),
        (("run", "--device", "sim:v100", "--budget", "9"), "nothing is measured on sim:v100"),
        (
            ("compare", "amp", "amp", "--device", "sim:v100", "--budget", "9"),
            "nothing is measured on sim:v100",
        ),
        (("doctor", "--budget", "9"), "--budget limits only --noise"),
        (("referee", "a.py", "b.py", "--whole", "--budget", "90"), "--whole runs both to their end"),
        (("referee", "a.py", "b.py", "-m", "--", "torchrun"), "-m is for python"),
        (
            ("referee", "a.py", "b.py", "--seed", "-1"),
            "Invalid value for '--seed': Input should be greater than or equal to 0",
        ),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(given, words):
    assert words in " ".join(run(*given, code=2).split())
