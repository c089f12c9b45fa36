"""The command line of a launch, and the switches that it has."""

import pytest

from perfkit.additions.ranks.command import RANKS
from perfkit.additions.ranks.launch import launch_of, launch_with
from perfkit.additions.ranks.switches import in_words, of_script, parse
from perfkit.additions.referee.command import _match
from perfkit.additions.referee.match import Terms
from perfkit.additions.scripts.command import launcher
from perfkit.errors import InvalidValue


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("old.py", "new.py"):
        (tmp_path / name).write_text("")


def test_a_command_starts_each_script_at_its_end_or_where_it_names_one(scripts):
    sides = RANKS.match(["old.py", "new.py", "torchrun", "--nproc-per-node", "2"], [], Terms())
    assert (sides.a.title, sides.b.title) == ("old.py", "new.py")
    named = launch_with(["torchrun", "old.py", "--epochs", "3"], "new.py", "old.py")
    assert named.command == ("torchrun", "new.py", "--epochs", "3")
    assert launch_with(["torchrun", "-x"], "new.py", "old.py").command == ("torchrun", "-x", "new.py")


@pytest.mark.parametrize("word", ["old.py", "new.py", "./old.py", "./new.py"])
def test_a_command_that_names_either_script_starts_each_side_s_own_there(word, scripts, capsys):
    """OLD and NEW were made arguments of the script that it names, which was compared with itself."""
    sides = RANKS.match(["old.py", "new.py", "torchrun", word, "-x"], [], Terms())
    starter = sides.plan.source().starter
    started = [(side.program or starter.launch).command for side in (sides.a, sides.b)]
    assert started == [("torchrun", "old.py", "-x"), ("torchrun", "new.py", "-x")]
    assert "old.py: torchrun old.py -x\nnew.py: torchrun new.py -x\n" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["data/python", "./torchrun", "runs/srun"])
def test_a_path_of_the_name_of_a_launcher_is_none(program, scripts, tmp_path):
    """The folder data/python, an argument of two scripts, was taken for what starts them on several ranks."""
    (tmp_path / "data" / "python").mkdir(parents=True)
    assert launcher(program) is None
    sides = _match(["old.py", "new.py", program], [], False, Terms("smoke"))
    starter = sides.plan.source().starter
    assert (sides.a.program or starter.launch).arguments == (program,)


@pytest.mark.parametrize("command", [["torchrun", "-m"], ["torchrun", "run.py"]])
def test_each_side_is_started_with_its_own_script_whatever_else_the_command_names(command, scripts, tmp_path):
    """Both had the title of the command, by which a side was looked up: A was started as B, and B as A."""
    (tmp_path / "run.py").write_text("")
    sides = RANKS.match(["old", "new", *command], [], Terms())
    assert (sides.a.title, sides.b.title) == ("old", "new")
    starter = sides.plan.source().starter
    started = [side.program or starter.launch for side in (sides.a, sides.b)]
    assert [launch.command for launch in started] == [(*command, "old"), (*command, "new")]


def test_switches_make_a_side_of_the_same_command(scripts):
    plain, switched = launch_of(["torchrun", "old.py"]), launch_of(["torchrun", "old.py"], {"bucket_mb": 9})
    assert plain.settings == ()
    assert switched.program == "bucket_mb=9"
    assert plain.describe() != switched.describe()


def test_switches_of_ranks_are_told_from_those_of_scripts():
    values = parse(["find_unused_parameters=off", "bucket_mb=100", "workers=2"])
    assert values == {"find_unused_parameters": False, "bucket_mb": 100, "workers": 2}
    assert of_script(values) == {"workers": 2}
    assert in_words(values) == "find_unused_parameters=off, bucket_mb=100, workers=2"


@pytest.mark.parametrize(
    ("setting", "allowed"), [("batch_size=8", {"samples", "updates", "losses"}), ("bucket_mb=9", set())]
)
def test_a_batch_size_changes_what_ranks_train_on_as_it_does_in_one_process(setting, allowed, scripts):
    assert RANKS.match(["torchrun", "old.py"], [setting], Terms()).allowed == allowed


@pytest.mark.parametrize(
    "setting", ["no_sync=maybe", "bucket_mb=0", "omp_threads=two", "buckets=3", "no_sync"]
)
def test_a_switch_that_is_not_one_is_refused(setting):
    with pytest.raises(InvalidValue):
        parse([setting])
