"""Sides of several ranks: how they are started, which switches they have, what all ranks did together."""

import socket
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfkit.additions.ranks import asked
from perfkit.additions.ranks.asked import launch_of, launch_with, of_all, proofs_of_all
from perfkit.additions.ranks.command import match
from perfkit.additions.ranks.switches import in_words, of_script, parse
from perfkit.additions.referee.behaviour import Behaviour
from perfkit.errors import InvalidValue
from perfkit.results.schema import Mechanism


@pytest.fixture
def scripts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("old.py", "new.py"):
        (tmp_path / name).write_text("")


def test_a_command_starts_each_script_at_its_end_or_where_it_names_one(scripts):
    sides = match(["old.py", "new.py", "torchrun", "--nproc-per-node", "2"], [], None, 0, [])
    assert (sides.a.title, sides.b.title) == ("old.py", "new.py")
    named = launch_with(["torchrun", "old.py", "--epochs", "3"], "new.py", "old.py")
    assert named.command == ("torchrun", "new.py", "--epochs", "3")
    assert launch_with(["torchrun", "-x"], "new.py", "old.py").command == ("torchrun", "-x", "new.py")


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
    "setting", ["no_sync=maybe", "bucket_mb=0", "omp_threads=two", "buckets=3", "no_sync"]
)
def test_a_switch_that_is_not_one_is_refused(setting):
    with pytest.raises(InvalidValue):
        parse([setting])


def test_a_switch_is_in_effect_only_where_it_is_on_every_rank():
    on, off = Mechanism("static_graph", True, "it is"), Mechanism("static_graph", False, "it is not")
    (proof,) = proofs_of_all([[on], [on]])
    assert (proof.ok, proof.evidence) == (True, "on all 2 ranks: it is")
    (proof,) = proofs_of_all([[on], [off]])
    assert (proof.ok, proof.evidence) == (False, "rank 1: it is not")


@pytest.fixture
def far(tmp_path, monkeypatch):
    """A launch that is not started, where temporary files have long paths."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    launched = asked.Launched.__new__(asked.Launched)
    launched.folder = folder
    launched.launch = SimpleNamespace(settings=())
    launched._start = lambda settings: settings
    return launched


def test_ranks_meet_at_a_short_path_wherever_temporary_files_are(far):
    address = far._open({"toggles": {}, "variables": {}}, "")["address"]
    with far._meeting, far._socket, socket.socket(socket.AF_UNIX) as rank:
        rank.connect(address)
    assert not Path(address).parent.exists()


def test_where_ranks_cannot_meet_one_error_says_what_to_set(far, monkeypatch):
    def refuse(**_):
        raise PermissionError

    monkeypatch.setattr(asked.tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(InvalidValue, match="too long for the path of a socket.*TMPDIR"):
        far._open({}, "")


def behaviour(**changes):
    told = {
        "loaded": [8, 8], "trained": [8, 8], "values": [80, 80], "backwards": [1, 1], "batches": [1.0, 2.0],
        "weight": [0.5, 0.6], "reached": [None, None], "losses": [1.0, 3.0], "evaluations": [],
        "checkpoints": [], "parameters": 10, "precision": "float32", "autocast": None, "replaced": [],
    }  # fmt: skip
    return Behaviour(**(told | changes))


def test_what_all_ranks_did_is_summed_and_their_losses_are_averaged():
    alone = behaviour(losses=[2.0, 5.0], evaluations=[1], marked=1, run={"evaluation": 2.0})
    both = of_all([behaviour(), alone])
    assert (both.loaded, both.values, both.losses) == ([16, 16], [160, 160], [1.5, 4.0])
    assert (both.evaluations, both.run) == ([1], {"evaluation": 2.0})
    assert len(set(both.batches)) == 2
