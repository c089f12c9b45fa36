"""Sharing from a notebook: a panel's prediction and result arrive in a room; what fails says why."""

from __future__ import annotations

import pytest

from perfkit import notebook as pk
from perfkit.errors import InvalidValue
from tests.unit.notebook.fakes import wait_until
from tests.unit.room.conftest import TOKEN, Room, open_room, room  # noqa: F401 - fixtures

RECORDED = "recorded:cpu-quick"


def test_a_prediction_is_shared_before_the_result_and_completed_by_it(room: Room) -> None:  # noqa: F811
    panel = pk.StagePanel("data_loading", device=RECORDED)
    with pytest.raises(InvalidValue, match="neither a prediction nor a result"):
        pk.share(panel, room.url, TOKEN)
    panel.predict(2.5, confidence=70)
    assert "Shared" in str(pk.share(panel, f"{room.url}/?token={TOKEN}", name="Ann").data)
    panel.run()
    pk.share(panel, room.url, TOKEN, "Ann")
    (row,) = room.board.entries
    assert (row.name, row.prediction, row.confidence, row.origin) == ("Ann", 2.5, 0.7, "recorded")
    assert row.ratio == panel.runs[-1].speedup("previous") is not None
    assert row.machine


def test_who_has_joined_shares_with_a_button_from_every_notebook(room: Room) -> None:  # noqa: F811
    with pytest.raises(InvalidValue, match="no room was joined"):
        pk.share(pk.StagePanel("data_loading", device=RECORDED))
    with pytest.raises(InvalidValue, match="token is missing or wrong"):
        pk.join(room.url, "wrong")
    assert "Ann" in str(pk.join(room.url, TOKEN, "Ann").data)
    for stage in ("data_loading", "amp"):
        panel = pk.StagePanel(stage, device=RECORDED)
        panel.predict(2)
        panel._buttons[0].click()
        wait_until(lambda panel=panel: "shared with the room" in panel._status.text.value)
    assert [(row.name, row.stage) for row in room.board.entries] == [("Ann", "data_loading"), ("Ann", "amp")]
    assert len({row.client for row in room.board.entries}) == 1
    room.stop()
    panel._buttons[0].click()
    wait_until(lambda: "cannot be reached" in panel._status.text.value)
    pk.leave()
    pk.leave()
    assert not pk.StagePanel("amp", device=RECORDED)._buttons


def test_a_whole_ladder_is_compared_with_the_plain_loop(room: Room) -> None:  # noqa: F811
    panel = pk.LadderPanel(["data_loading"], device=RECORDED)
    panel.run()
    pk.share(panel, room.url, TOKEN)
    assert room.board.entries[0].ratio == panel.runs[-2].speedup("baseline")
    assert room.board.entries[0].name.startswith("learner ")


def test_what_cannot_be_shared_says_why(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # the room is on this network: no proxy is asked
    panel = pk.StagePanel("data_loading", device=RECORDED)
    panel.predict(2)
    with pytest.raises(InvalidValue, match="token is missing or wrong"):
        pk.share(panel, room.url, "wrong")
    with pytest.raises(InvalidValue, match="not the address of a room"):
        pk.share(panel, "file:///etc/passwd", TOKEN)
    pk.share(panel, room.url, TOKEN)
    room.stop()
    with pytest.raises(InvalidValue, match="cannot be reached"):
        pk.share(panel, room.url, TOKEN)
