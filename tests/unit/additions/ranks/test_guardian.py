"""Which processes the guardian of a launch ends: those that the launch has started, and no others."""

import io
import json
import sys

import psutil
import pytest

from perfkit.additions.ranks import guardian
from perfkit.additions.scripts.entry import VARIABLE


class Process:
    """A process with these variables in its environment."""

    def __init__(self, **variables):
        self._variables = variables
        self.is_running = True

    def environ(self):
        return self._variables

    def kill(self):
        self.is_running = False


class Foreign(Process):
    def environ(self):
        raise psutil.AccessDenied


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """The folder of a launch whose watcher has gone."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    folder = tmp_path / "perfkit-launch"
    (folder / "files").mkdir(parents=True)
    return folder


def ended(launch, monkeypatch, *processes):
    """Which of these processes are ended."""
    running = lambda: [process for process in processes if process.is_running]
    monkeypatch.setattr(psutil, "process_iter", running)
    monkeypatch.setattr(psutil, "wait_procs", lambda killed, timeout: None)
    guardian.guard(VARIABLE, str(launch / "files"), str(launch / "meeting"))
    return [not process.is_running for process in processes]


def test_processes_with_the_settings_of_the_launch_are_ended_even_if_they_have_their_own_folders(
    launch, monkeypatch
):
    settings = json.dumps({"scratch": str(launch / "files")})
    rank = Process(**{VARIABLE: settings, "TMPDIR": str(launch)})
    moved = Process(**{VARIABLE: settings, "TMPDIR": "/scratch/job"})
    assert ended(launch, monkeypatch, Foreign(), rank, moved) == [False, True, True]
    assert not launch.exists()


def test_what_the_user_has_started_in_a_folder_of_the_launch_goes_on(launch, monkeypatch):
    """As an editor of a shell that is in it, and what other launches have started, or other programs."""
    editor = Process(PWD=str(launch), TMPDIR=str(launch), OLDPWD=str(launch / "files"))
    others = [
        Process(**{VARIABLE: text}) for text in (json.dumps({"scratch": "/tmp/other/files"}), "on", "[]")
    ]
    assert ended(launch, monkeypatch, editor, *others) == [False] * 4
