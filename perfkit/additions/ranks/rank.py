"""A rank, in its own process: recorder.py notes what it does, and a thread reports it (reporter.py).

Questions do not stop it at the end of a step: ranks that stop one by one would wait for each other for ever.
"""

import _thread
import atexit
import faulthandler
import multiprocessing.util
import os
import signal
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import torch.distributed as dist

from perfkit.additions.guard.outputs import Outputs
from perfkit.additions.ranks.brief import RankLoaders, RankModels, RankUpdates
from perfkit.additions.ranks.messages import LIMIT, Hello
from perfkit.additions.ranks.recorder import RankRecorder
from perfkit.additions.ranks.reporter import RankReporter
from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.script import Callback, Script, ScriptStep
from perfkit.additions.shared.settings import Settings
from perfkit.process.failures import explain


class Joining(Callback):
    """Makes this process a rank once the script makes the group of all ranks, or trains without one."""

    def __init__(self, script: Script, observers: list[Any], on_joined: Callable[..., None]) -> None:
        self._script = script
        self._observers = observers  # callbacks that are removed if nobody listens, as on another machine
        self._on_joined = on_joined  # is called with the rank's `Hello` and its connection
        self._is_needed = True
        for module in (dist, dist.distributed_c10d):
            hooks.around(module, "init_process_group", self._make_group)

    def _make_group(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        self.join()
        return result

    def on_steps(self, _steps: list[ScriptStep]) -> None:
        default = "1" if self._script.steps.count >= LIMIT.alone else ""  # it seems to train alone
        if self._is_needed and os.environ.get("WORLD_SIZE", default) == "1":
            self.join()  # many scripts make no group for a single rank

    def join(self) -> None:
        """Connects to the watcher as the rank of this process; without a group, it is the only rank."""
        if not self._is_needed:
            return
        rank, world = 0, 1
        if dist.is_initialized():
            rank, world = dist.get_rank(), dist.get_world_size()
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(self._script.settings.address)
        except OSError as problem:
            self._remove(self, *self._observers)
            print(f"perfkit cannot see rank {rank}, because nobody listens here: {problem}", file=sys.stderr)
            return
        self._is_needed = False
        self._remove(self)
        connection = Connection(sock.detach())
        local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or world
        restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        hello = Hello(rank=rank, world=world, local=int(local), pid=os.getpid(), restart=restart)
        connection.send_bytes(msgspec.json.encode(hello))
        self._on_joined(hello, connection)

    def _remove(self, *callbacks: Callback) -> None:
        self._script.set_callbacks(*[each for each in self._script.callbacks if each not in callbacks])


def listen(settings: Settings, files: Outputs) -> RankRecorder:
    """Sets up each process of a launch once it has imported torch; those that join are ranks."""
    hooks.check()
    script = Script(settings, files)
    recorder = RankRecorder(script)
    recorder.listen()  # first, so that its hook of backward is inside that of `Updates`

    def on_joined(hello: Hello, connection: Connection) -> None:
        recorder.rank = hello.rank
        recorder.world = hello.world
        recorder.brief.is_possible = True
        reporter = RankReporter(recorder, hello, connection)
        _report_end(reporter)
        if signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:  # works even if no other thread runs
            path = os.path.join(os.path.dirname(settings.scratch), f"stacks{hello.rank}")
            faulthandler.register(signal.SIGUSR2, open(path, "w", encoding="utf-8"))  # noqa: SIM115 - kept open
        sys.setswitchinterval(LIMIT.switch_s)
        _thread.start_new_thread(reporter.attend, ())  # a script may wait for all threads of `threading`

    brief = recorder.brief
    training = [RankLoaders(script, brief), RankModels(script, brief), RankUpdates(script, brief)]
    joining = Joining(script, [recorder.evaluations, recorder, brief], on_joined)
    setting = [recorder.setting] if settings.ranked else []
    script.set_callbacks(script, *training, recorder.evaluations, *setting, joining, recorder, brief)
    return recorder


def _report_end(reporter: RankReporter) -> None:
    """Reports the error or the end of a rank when it comes; a process that it forks is not a rank."""

    def crashed(show: Any, kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        show(kind, problem, trace)
        reporter.end(explain(problem).what)

    hooks.around(sys, "excepthook", crashed)
    atexit.register(reporter.end)
    multiprocessing.util.Finalize(None, reporter.end, exitpriority=0)  # forked processes skip `atexit`
    os.register_at_fork(after_in_child=reporter.close)
