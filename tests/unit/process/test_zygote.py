"""Zygotes: how many of them there are, without a process."""

from types import SimpleNamespace

import pytest

from perfkit.process import zygote


@pytest.fixture
def started(monkeypatch):
    """The zygotes that were started and not ended, by the variables of their environments."""
    alive = {}

    def start(variables):
        name = variables["NAME"]
        alive[name] = SimpleNamespace(is_alive=True, is_busy=False, close=lambda: alive.pop(name))
        return alive[name]

    monkeypatch.setattr(zygote, "Zygote", start)
    monkeypatch.setattr(zygote, "_zygotes", {})
    return alive


def test_only_what_is_needed_or_in_use_stays(started):
    for name in ("plain", "passive", "busy"):
        zygote.prepare({"NAME": name}, 0)
    zygote.prepare({"NAME": "of a generation"}, zygote.new_generation())
    started["busy"].is_busy = True
    zygote.end_unneeded({"NAME": "plain", "TMPDIR": "/elsewhere"})
    assert list(started) == ["plain", "busy", "of a generation"]
    started["busy"].is_busy = False
    zygote.end_unneeded({"NAME": "plain"})
    assert list(started) == ["plain", "of a generation"]
    zygote.prepare({"NAME": "passive"}, 0)
    assert "passive" in started, "whoever needs it again gets another one"
