"""Zygotes: how many of them there are, and what ends one; no process starts."""

import errno
import fcntl
import os
import resource
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from perfkit.errors import RunFailed
from perfkit.process import child, zygote


@pytest.fixture
def started(monkeypatch):
    """The zygotes that were started and not ended, by the variables of their environments."""
    alive = {}

    def start(variables):
        name = variables["NAME"]
        alive[name] = SimpleNamespace(
            is_alive=True, is_busy=False, pid=len(name), close=lambda: alive.pop(name)
        )
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
    assert zygote.pids() == {len(name) for name in started}
    started["busy"].is_busy = False
    zygote.end_unneeded({"NAME": "plain"})
    assert list(started) == ["plain", "of a generation"]
    zygote.prepare({"NAME": "passive"}, 0)
    assert "passive" in started, "whoever needs it again gets another one"


@pytest.mark.parametrize("lacking", [errno.EMFILE, errno.ENOMEM])
def test_a_zygote_that_lives_is_not_ended_because_this_process_lacks_something(started, lacking):
    """Panels share it: their children would end with it."""
    zygote.prepare({"NAME": "shared"}, 0)
    tries = []

    def fork(line, check):
        tries.append(line)
        raise OSError(lacking, os.strerror(lacking))

    started["shared"].fork = fork
    with pytest.raises(OSError, match=os.strerror(lacking)):
        zygote.start("a line", {"NAME": "shared"}, 0, lambda: None)
    assert (list(started), tries) == (["shared"], ["a line"])


@pytest.mark.parametrize("tells", ["nothing", "an error"])
def test_a_zygote_that_has_ended_is_replaced(started, monkeypatch, tells):
    start = zygote.Zygote
    forked = [SimpleNamespace(pid=None, close=lambda: None), SimpleNamespace(pid=7)]

    def forking(variables):
        one = start(variables)
        one.fork = lambda line, check: fork(one)
        return one

    def fork(one):
        if len(forked) == 2:
            one.is_alive = False
            if tells == "an error":
                forked.pop(0)
                raise OSError(errno.EBADF, "it was closed")
        return forked.pop(0)

    monkeypatch.setattr(zygote, "Zygote", forking)
    assert zygote.start("a line", {"NAME": "shared"}, 0, lambda: None).pid == 7
    assert list(started) == ["shared"], "another one"


def test_that_a_request_does_not_arrive_means_that_the_zygote_has_ended(monkeypatch):
    """Its process may not have been waited for yet."""
    one = object.__new__(zygote.Zygote)
    one._socket, theirs = zygote.socket.socketpair()
    one._lock, one._children = zygote.threading.Lock(), []
    theirs.close()
    line, other = child.Pipe()
    with line, other, one._socket:
        forked = one.fork(line, lambda: None)
    forked.close()
    assert forked.pid is None


def test_a_zygote_that_cannot_fork_says_why_and_goes_on(monkeypatch):
    """It ended, and with it all measuring processes that it had forked."""
    one = object.__new__(zygote.Zygote)
    one._socket, theirs = zygote.socket.socketpair()
    one._lock, one._children = zygote.threading.Lock(), []
    server = object.__new__(zygote._Server)
    server._requests, server._children = theirs, {}
    problem = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    monkeypatch.setattr(zygote.os, "fork", Mock(side_effect=problem))
    line, other = child.Pipe()
    goes_on = []

    def serve_once():
        server._fork()
        goes_on.append(True)

    with line, other, one._socket, theirs, pytest.raises(BlockingIOError, match=os.strerror(errno.EAGAIN)):
        one.fork(line, serve_once)
    assert goes_on and server._children == {}


def test_a_child_is_noted_under_the_lock():
    """Else a thread that forks at the same time drops it, and its zygote is ended as idle."""
    one = object.__new__(zygote.Zygote)
    one._socket, theirs = zygote.socket.socketpair()
    one._lock, seen = zygote.threading.Lock(), []

    class Earlier:
        @property
        def is_closed(self):
            seen.append(one._lock.locked())
            return False

    one._children = [Earlier()]
    theirs.close()
    line, other = child.Pipe()
    with line, other, one._socket:
        one.fork(line, lambda: None).close()
    assert seen == [True]
    assert len(one._children) == 2


def test_no_file_left_is_one_error_that_says_what_to_do(monkeypatch):
    def full(*_):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    for place, name in ((child, "Pipe"), (zygote, "start")):
        with monkeypatch.context() as lacking, pytest.raises(RunFailed) as failed:
            lacking.setattr(place, name, full)
            child.Child()
        words = "no measuring process could be started: Too many open files. Close files"
        assert str(failed.value).startswith(words) and "ulimit -n" in str(failed.value)


def test_a_process_with_a_thousand_open_files_can_start_one_more():
    """`select` knows descriptors up to 1,023 only."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], max(limits[0], 4096)), limits[1]))
    number, theirs = os.pipe()
    try:
        high = fcntl.fcntl(number, fcntl.F_DUPFD, 2000)
        os.write(theirs, zygote._NUMBER.pack(7))
        forked = zygote.ForkedChild(high, lambda: None)
        assert (forked.pid, forked.exit_code()) == (7, None)
        forked.close()
    finally:
        os.close(number)
        os.close(theirs)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
