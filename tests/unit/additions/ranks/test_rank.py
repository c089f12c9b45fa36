"""How a rank joins."""

from types import SimpleNamespace

import pytest
import torch

from perfkit.additions.ranks.rank import Joining
from perfkit.additions.scripts.script import Script
from tests.support.settings import settings


@pytest.fixture
def joining(tmp_path, monkeypatch):
    """What joins in a process that is no rank; nobody listens where it comes."""
    monkeypatch.setattr("torch.distributed.init_process_group", lambda: None)
    monkeypatch.setattr("torch.distributed.distributed_c10d.init_process_group", lambda: None)
    trains, notes = SimpleNamespace(), SimpleNamespace(steps=[])
    script = Script(settings(address=str(tmp_path / "ranks")), None)
    script.set_callbacks(trains, notes)
    joined = []
    joining = Joining(script, [notes], lambda *how: joined.append(how))
    return SimpleNamespace(script=script, trains=trains, part=joining, joined=joined)


def test_a_rank_that_nobody_listens_to_trains_on_and_notes_nothing(joining, capsys):
    joining.script.set_callbacks(*joining.script.callbacks, joining.part)
    torch.distributed.init_process_group()
    assert joining.joined == []
    assert joining.script.callbacks == (joining.trains,)
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
