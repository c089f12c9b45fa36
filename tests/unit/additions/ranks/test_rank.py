"""What a rank notes of itself, and how it joins."""

import itertools
import threading
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from perfkit.additions.ranks import rank
from perfkit.additions.ranks.ddp import StepExchange
from perfkit.additions.ranks.messages import PARTS, Hello, State
from perfkit.additions.ranks.rank import Joining, RankRecorder, RankReporter, _row_sums
from perfkit.additions.scripts.script import ScriptStep


@pytest.fixture
def joining(tmp_path, monkeypatch):
    """What joins in a process that is no rank; nobody listens where it comes."""
    monkeypatch.setattr("torch.distributed.init_process_group", lambda: None)
    monkeypatch.setattr("torch.distributed.distributed_c10d.init_process_group", lambda: None)
    trains, notes = SimpleNamespace(), SimpleNamespace(steps=[])
    script = SimpleNamespace(settings={"address": str(tmp_path / "ranks")}, parts=[trains, notes])
    script.steps = SimpleNamespace(count=0)
    joined = []
    joining = Joining(script, [notes], lambda *how: joined.append(how))
    return SimpleNamespace(script=script, trains=trains, part=joining, joined=joined)


def test_a_rank_that_nobody_listens_to_trains_on_and_notes_nothing(joining, capsys):
    joining.script.parts.append(joining.part)
    torch.distributed.init_process_group()
    assert joining.joined == []
    assert joining.script.parts == [joining.trains]
    assert "nobody listens here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("world", "count", "joins"), [("1", 1, True), (None, 1, False), (None, 20, True), ("2", 20, False)]
)
def test_a_process_that_trains_alone_joins_without_a_group(joining, monkeypatch, world, count, joins):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if world:
        monkeypatch.setenv("WORLD_SIZE", world)
    tried = []
    monkeypatch.setattr(joining.part, "join", lambda: tried.append(True))
    joining.script.steps.count = count
    joining.part.on_steps([])
    assert tried == [True] * joins


def recorder(parameters=()):
    """One of a rank whose script has these weights."""
    noted = RankRecorder.__new__(RankRecorder)
    noted.script = SimpleNamespace(
        steps=SimpleNamespace(count=0), parameters=lambda: list(parameters), note_call=lambda role: None
    )
    noted._seen = SimpleNamespace(rows={}, weights={})
    noted._elements = 0
    return noted


def test_an_exchange_that_was_not_read_takes_no_longer_than_the_backward_pass_it_was_in():
    """Its own collectives are not taken out of it once more."""
    step = ScriptStep(seconds=1.0)
    step.spent |= {"backward": 0.3, "exchange": 0.2}
    usual, read = (StepExchange(0.5, 0.1, 1, is_read) for is_read in (False, True))
    seen = recorder()._step(9, step, usual, 8)
    parts = dict(zip(PARTS, seen.parts, strict=True))
    assert (seen.is_read, seen.hidden, seen.syncs) == (False, 0.1, 1)
    assert (parts["backward"], parts["exchange"]) == pytest.approx((0.0, 0.5))
    assert parts["own code"] == pytest.approx(0.5)
    on_gpu = recorder()._step(9, step, read, 8)
    assert on_gpu.parts[-1] == pytest.approx(0.7), "the device may take longer than its launch"


def test_rows_are_compared_over_all_inputs_and_the_whole_of_each():
    """A model that is given the time step first, or rows with an equal beginning: these are not the same rows."""
    times, rows = torch.arange(4), torch.randn(4, 5000)
    others = rows.clone()
    others[:, 2500:] += 1.0
    assert _row_sums([times, rows]) == _row_sums([times, rows.clone()])
    assert not set(_row_sums([times, rows])) & set(_row_sums([times, rows + 1.0]))
    assert not set(_row_sums([rows])) & set(_row_sums([others]))


@pytest.mark.parametrize(
    "inputs",
    [
        torch.eye(4).to_sparse(),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    ],
)
def test_inputs_without_plain_rows_are_left_alone(inputs):
    noted = recorder([torch.nn.Parameter(torch.ones(2))])
    noted.on_input((inputs,))
    assert noted._seen.rows == {0: []}
    assert list(noted._seen.weights) == [0]


class Divided(torch.nn.Parameter):
    """As a `DTensor`, of which each rank has a part."""

    device_mesh = "the ranks"


def test_weights_that_are_divided_between_ranks_are_not_compared():
    noted = recorder([Divided(torch.ones(2))])
    noted.on_input((torch.randn(4, 2),))
    assert (noted._seen.rows, noted._seen.weights) == ({0: []}, {})


def test_ranks_tell_gpus_apart_that_each_of_them_calls_the_first_one(monkeypatch):
    """As under Slurm and Ray, which show each rank its own GPU alone."""
    monkeypatch.setattr(rank.socket, "gethostname", lambda: "node1")
    noted = recorder()
    about = {"loader": None, "sites": defaultdict(list), "notes": [], "files": SimpleNamespace(notes=[])}
    noted.script = SimpleNamespace(**about, device=torch.device("cuda:0"), steps=SimpleNamespace(count=9))
    noted.rank, noted._seen, noted._collectives, noted._stepped_at = 1, State(rank=0), {}, 0.0
    noted.account = SimpleNamespace(part_now=lambda: "own code")
    noted.exchange = SimpleNamespace(models={}, ddps=list)
    noted.setting = SimpleNamespace(proofs=list)
    said = []
    for uuid in ("GPU-1", "GPU-2"):
        monkeypatch.setattr(rank, "facts", lambda device, uuid=uuid: SimpleNamespace(uuid=uuid))
        said.append(noted.snapshot().gpu)
    assert said == ["node1 GPU-1", "node1 GPU-2"]


class Line:
    """Asks two times; then the rank is over."""

    def __init__(self):
        self.left, self.sent = 2, []
        self.over = lambda: None

    def poll(self, seconds):
        if not self.left:
            self.over()
            raise OSError
        self.left -= 1
        return True

    def recv_bytes(self):
        return b"state"

    def send_bytes(self, message):
        self.sent.append(message)


def reporting(number, local):
    """The reporter of one of two ranks, of which its node has so many; what it says, and what is noted."""
    line, notes = Line(), []
    script = SimpleNamespace(steps=SimpleNamespace(count=9), note=notes.append)
    sampler = SimpleNamespace(look=lambda ident, before: before + 1.0, times={}, lines=lambda frame: [])
    about = {"thread": threading.current_thread(), "part_now": lambda: "forward"}
    known = SimpleNamespace(script=script, sampler=sampler, snapshot=lambda: State(rank=number), **about)
    reporter = RankReporter(known, Hello(rank=number, world=2, local=local, pid=1, restart=0), line)
    line.over = reporter._over.set
    return reporter, line, notes


class Gone:
    """The store of a launch whose first node has ended."""

    def set(self, key, value):
        raise RuntimeError("Connection reset by peer")

    def check(self, keys):
        raise RuntimeError("Connection reset by peer")


@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_lives_on_and_answers_without_the_store_of_its_launch(number, monkeypatch):
    monkeypatch.setattr(rank, "clock", itertools.count().__next__)
    reporter, line, notes = reporting(number, local=2)
    reporter._store = Gone()
    reporter.attend()
    assert len(line.sent) == 4, "a state and a sign of life, two times"
    assert notes == ["ranks of other nodes are not heard of: Connection reset by peer"]


def test_the_training_waits_for_no_store_that_is_not_said_to_be_there(monkeypatch):
    made = []
    monkeypatch.setattr(
        "torch.distributed.TCPStore", lambda *place, **how: made.append((*place, how["timeout"]))
    )
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    _, _, notes = reporting(1, local=1)
    assert not made
    assert notes == ["ranks of other nodes are not heard of: MASTER_ADDR and MASTER_PORT are not set"]
    monkeypatch.setenv("MASTER_ADDR", "node0")
    monkeypatch.setenv("MASTER_PORT", "29500")
    _, _, notes = reporting(1, local=1)
    assert made == [("node0", 29500, rank._FAR)] and not notes
