"""The answers of ranks while launches are compared, given in their own processes."""

import atexit
import functools
import inspect
import os
import sys
import threading
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist
from torch.distributed.constants import default_pg_timeout

from perfkit.additions.guard.outputs import Outputs
from perfkit.additions.ranks.ddp import Setting
from perfkit.additions.ranks.messages import Hello
from perfkit.additions.ranks.rank import Joining
from perfkit.additions.scripts import hooks
from perfkit.additions.scripts import questions as scripts
from perfkit.additions.scripts.messages import failed_inside
from perfkit.additions.scripts.questions import ParentConnection, Questions
from perfkit.additions.scripts.script import Script
from perfkit.additions.shared.settings import Settings
from perfkit.process.failures import explain
from perfkit.results.schema import Mechanism


def results(questions: Questions) -> tuple[int, list[float], list[Mechanism]]:
    """Samples in a step on this rank, its losses, and the proofs of its switches."""
    script = questions.subject
    setting = next(callback for callback in script.callbacks if isinstance(callback, Setting))
    return script.samples_per_step, [float(loss) for loss in script.updates.losses], setting.proofs()


class OtherRank:
    """Answers for a rank other than rank 0, at any time, from a thread."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._line = ParentConnection()
        self._thread: threading.Thread | None = None  # runs until the connection is closed

    def begin(self, connection: Connection) -> None:
        os.register_at_fork(after_in_child=self._line.close)
        self._line.connection = connection
        self._thread = threading.Thread(target=self._answer, daemon=True)
        self._thread.start()

    def _answer(self) -> None:
        for question in self._line.questions():
            try:
                self._line.send(self._questions.answer(question.name, question.arguments))
            except Exception as problem:
                self._line.send(failed_inside(problem))
        os._exit(0)

    def crashed(self, show: Any, kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        show(kind, problem, trace)
        if self._thread:
            self._line.send(explain(problem))
            self._thread = None

    def end(self) -> None:
        """Keeps the process of a rank that has ended without an error until its connection is closed."""
        if self._thread:
            self._thread.join()


def listen(settings: Settings, files: Outputs) -> None:
    """Sets up each process of a launch once it has imported torch; those that join are ranks."""
    line = ParentConnection()  # of rank 0, which answers at the end of its steps
    seed = (settings.seed + int(os.environ.get("RANK", "0"))) % 2**32  # NumPy's largest seed
    questions = scripts.listen(replace(settings, seed=seed), files, line)
    script = questions.subject
    setting = Setting(script, settings.ranked)
    _lift_timeouts(script)
    other = OtherRank(questions)
    hooks.around(sys, "excepthook", other.crashed)
    atexit.register(other.end)

    def on_joined(hello: Hello, connection: Connection) -> None:
        if hello.rank:
            other.begin(connection)
        else:
            line.connection = connection

    joining = Joining(script, [questions.run_account, *questions.observers.values()], on_joined)
    script.set_callbacks(setting, joining, *script.callbacks)  # the last callback waits for questions


def _lift_timeouts(script: Script) -> None:
    """Lifts timeouts that run on while this rank is suspended."""
    iterator = "torch.utils.data.dataloader._BaseDataLoaderIter.__init__"
    hooks.wrap(iterator, functools.partial(_wait_for_batches, script))
    for module in (dist, dist.distributed_c10d):
        for name in ("init_process_group", "new_group"):
            hooks.around(module, name, functools.partial(_wait_for_ranks, script))


def _wait_for_batches(script: Script, plain: Any, iterator: Any, loader: Any) -> None:
    """Lifts the timeout of a loader, whose workers are suspended with this rank."""
    plain(iterator, loader)
    if iterator._num_workers and iterator._timeout:
        iterator._timeout = 0
        script.note(f"DataLoader(timeout={loader.timeout}) is ignored: ranks are suspended, too")


def _wait_for_ranks(script: Script, plain: Any, *args: Any, **kwargs: Any) -> Any:
    """Lifts a short timeout of collectives; all ranks are suspended together."""
    arguments = inspect.signature(plain).bind(*args, **kwargs).arguments
    timeout = arguments.get("timeout")
    if timeout is not None and timeout < default_pg_timeout:
        arguments["timeout"] = default_pg_timeout
        script.note(f"{plain.__name__}(timeout={timeout}) is ignored: ranks are suspended, too")
    return plain(**arguments)
