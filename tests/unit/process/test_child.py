"""Measuring processes without torch: their logs, starts that are given up, ends that are interrupted."""

import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from perfkit.errors import Cancelled, RunFailed, TookTooLong
from perfkit.process import child, zygote
from perfkit.process.locks import check_cancelled
from perfkit.process.tree import Tree


def test_of_a_long_log_only_the_end_is_read(tmp_path, monkeypatch):
    log = tmp_path / "rank0.log"
    log.write_text("a step\n" * child.LOG_BYTES + "the last words\n")
    found = child.last_lines(log)
    assert found.endswith("the last words")
    assert len(found) <= child.LOG_BYTES
    assert child.last_lines(tmp_path / "none.log") == ""


GIVEN_UP = """
import os
from multiprocessing import Pipe
from perfkit.process import zygote
ours, theirs = Pipe()
ours.send(zygote.Setup({}, [], "/", "/nowhere/log"))
pid = os.fork()
if not pid:
    zygote._become(theirs)
os.waitpid(pid, 0)
print("alive")
"""


def test_a_start_that_was_given_up_ends_itself_and_not_its_zygote():
    command = [sys.executable, "-c", GIVEN_UP]
    done = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_a_start_can_be_stopped_while_torch_is_imported():
    cancelled = threading.Event()
    cancelled.set()
    number, zygotes = os.pipe()
    with pytest.raises(Cancelled):
        zygote.ForkedChild(number, lambda: check_cancelled(cancelled))
    os.close(zygotes)


class Silent(child.Conversation):
    """With a process that never answers."""

    line = SimpleNamespace(send=lambda question: None)
    tree = SimpleNamespace(resume=lambda: None)

    def event(self):
        return None


def test_a_question_that_is_not_answered_in_time_has_an_error_for_itself():
    """It is told from a crash."""
    with pytest.raises(TookTooLong, match="time limit"):
        Silent(lambda phase: None, None, timeout_s=1e-6).ask("anything")


def test_a_process_that_was_stopped_answers_nothing_more():
    """It was asked without end, and all the time."""
    line, other = child.Pipe()
    stopped = object.__new__(child.Child)
    child.Conversation.__init__(stopped, lambda phase: None, None, timeout_s=1.0)
    stopped.line, stopped.tree = line, SimpleNamespace(resume=lambda: None)
    stopped._process = SimpleNamespace(is_closed=True, exit_code=lambda: None)
    with other:
        line.close()
    with pytest.raises(RunFailed, match="was stopped before"):
        stopped.ask("slice")


def test_an_end_that_a_second_ctrl_c_interrupts_ends_everything_when_it_is_called_again(monkeypatch):
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    tree = Tree(process.pid)
    tree.suspend()
    with monkeypatch.context() as pressed, pytest.raises(KeyboardInterrupt):
        pressed.setattr(Tree, "_session", Mock(side_effect=KeyboardInterrupt))
        tree.end()
    try:
        tree.end()
        assert process.wait(10) == -signal.SIGTERM
    finally:
        process.kill()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_time_of_a_process_that_is_started_later_is_its_tree_s():
    """A loader's workers were the other programs that took 55% of the cores."""
    works = "import os, time\nif os.fork() == 0:\n    while time.process_time() < 0.3: pass\n    print('done', flush=True)\n"
    command = [sys.executable, "-S", "-c", f"input()\n{works}input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        tree = Tree(process.pid)
        before = tree.cpu_s()
        process.stdin.write("begin\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"  # the child goes on to wait for a line
        used_s = tree.cpu_s() - before
        process.stdin.close()
    assert used_s >= 0.25
