"""What ranks answer while launches are compared; in their own processes."""

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
from perfkit.additions.scripts.questions import Line, Questions
from perfkit.additions.scripts.script import Script
from perfkit.additions.shared.settings import Settings
from perfkit.process.failures import explain
from perfkit.results.schema import Mechanism


def told(questions: Questions) -> tuple[int, list[float], list[Mechanism]]:
    """Samples of a step on this rank, its losses, and proofs of what is set."""
    script = questions.subject
    setting = next(each for each in script.callbacks if isinstance(each, Setting))
    return script.samples_per_step, [float(loss) for loss in script.losses], setting.proofs()


class OtherRank:
    """Tells what a rank other than rank 0 knows, at any time, from a thread."""

    def __init__(self, questions: Questions) -> None:
        self._questions = questions
        self._line = Line()
        self._thread: threading.Thread | None = None  # runs until nobody asks any more

    def begin(self, connection: Connection) -> None:
        os.register_at_fork(after_in_child=self._line.close)
        self._line.connection = connection
        self._thread = threading.Thread(target=self._tell, daemon=True)
        self._thread.start()

    def _tell(self) -> None:
        for asked in self._line.questions():
            self._line.send(self._questions.answer(asked.name, asked.arguments))
        os._exit(0)

    def crashed(self, show: Any, kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        show(kind, problem, trace)
        if self._thread:
            self._line.send(explain(problem))
            self._thread = None

    def end(self) -> None:
        """Keeps a rank that has ended, but has not crashed, until nobody asks any more."""
        if self._thread:
            self._thread.join()


def listen(settings: Settings, files: Outputs) -> None:
    """Is called in each process of a launch once it has imported torch; those that join are ranks."""
    line = Line()  # that of rank 0, which is asked at its steps
    seed = (settings.seed + int(os.environ.get("RANK", "0"))) % 2**32  # NumPy takes no larger one
    questions = scripts.listen(replace(settings, seed=seed), files, line)
    script = questions.subject
    setting = Setting(script, settings.ranked)
    _lift_time_outs(script)
    other = OtherRank(questions)
    hooks.around(sys, "excepthook", other.crashed)
    atexit.register(other.end)

    def joined(hello: Hello, connection: Connection) -> None:
        if hello.rank:
            other.begin(connection)
        else:
            line.connection = connection

    joining = Joining(script, [questions.run_account, *questions.observers.values()], joined)
    script.set_callbacks(setting, joining, *script.callbacks)  # the last one waits for questions


def _lift_time_outs(script: Script) -> None:
    """Lifts limits of time that run on while this rank is suspended."""
    iterator = "torch.utils.data.dataloader._BaseDataLoaderIter.__init__"
    hooks.wrap(iterator, functools.partial(_wait_for_batches, script))
    for module in (dist, dist.distributed_c10d):
        for name in ("init_process_group", "new_group"):
            hooks.around(module, name, functools.partial(_wait_for_ranks, script))


def _wait_for_batches(script: Script, plain: Any, iterator: Any, loader: Any) -> None:
    """Lifts the time-out of a loader, whose workers are suspended with this rank."""
    plain(iterator, loader)
    if iterator._num_workers and iterator._timeout:
        iterator._timeout = 0
        script.note(f"DataLoader(timeout={loader.timeout}) is ignored: ranks are suspended, too")


def _wait_for_ranks(script: Script, plain: Any, *args: Any, **kwargs: Any) -> Any:
    """Lifts a short time-out of exchanges; all ranks are suspended together."""
    given = inspect.signature(plain).bind(*args, **kwargs).arguments
    timeout = given.get("timeout")
    if timeout is not None and timeout < default_pg_timeout:
        given["timeout"] = default_pg_timeout
        script.note(f"{plain.__name__}(timeout={timeout}) is ignored: ranks are suspended, too")
    return plain(**given)
