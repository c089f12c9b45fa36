"""What ranks answer while launches are compared; in their own processes."""

import contextlib
import inspect
import os
import threading
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist
from msgspec import structs
from torch.distributed.constants import default_pg_timeout

from perfkit.additions.guard.outputs import Outputs
from perfkit.additions.ranks.ddp import Setting
from perfkit.additions.ranks.messages import Hello
from perfkit.additions.ranks.rank import Joining
from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.questions import Questions
from perfkit.additions.shared.settings import Settings
from perfkit.process.failures import explain
from perfkit.results.schema import Mechanism
from perfkit.worker.procedure import Procedure


class RankQuestions(Questions):
    """Rank 0 is asked at its steps; the others tell what they know at any time, from a thread."""

    def __init__(self, settings: Settings, files: Outputs) -> None:
        seed = (settings.seed + int(os.environ.get("RANK", "0"))) % 2**32  # NumPy takes no larger one
        line, _ = Pipe()
        super().__init__(replace(settings, seed=seed, line=os.dup(line.fileno())), files)
        self.line.close()  # until this process is rank 0
        self._other: Connection | None = None  # of another rank
        self._setting = Setting(self._script, settings.ranked)
        hooks.wrap(f"{hooks.ITERATOR}.__init__", self._wait_for_batches)
        for module in (dist, dist.distributed_c10d):
            for name in ("init_process_group", "new_group"):
                hooks.around(module, name, self._wait_for_ranks)
        joining = Joining(self._script, [self.run_account, *self.observers.values()], self._joined)
        # The last one waits for questions.
        self._script.set_callbacks(self._setting, joining, *self._script.callbacks)

    def _joined(self, hello: Hello, line: Connection) -> None:
        os.register_at_fork(after_in_child=line.close)
        if hello.rank:
            self._other = line
            self._telling = threading.Thread(target=self._tell, args=(line,), daemon=True)
            self._telling.start()
        else:
            self.line = line

    def _wait_for_batches(self, plain: Any, iterator: Any, loader: Any) -> None:
        """Lifts the time-out of a loader, which runs on while this rank is suspended with its workers."""
        plain(iterator, loader)
        if iterator._num_workers and iterator._timeout:
            iterator._timeout = 0
            self._script.note(f"DataLoader(timeout={loader.timeout}) is ignored: ranks are suspended, too")

    def _wait_for_ranks(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Lifts a short time-out of exchanges, which runs on while all ranks are suspended."""
        given = inspect.signature(plain).bind(*args, **kwargs).arguments
        timeout = given.get("timeout")
        if timeout is not None and timeout < default_pg_timeout:
            given["timeout"] = default_pg_timeout
            self._script.note(f"{plain.__name__}(timeout={timeout}) is ignored: ranks are suspended, too")
        return plain(**given)

    def _tell(self, line: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                asked = line.recv()
                line.send(self.answer(asked.name, asked.arguments))
        os._exit(0)  # nobody listens any more

    def _crashed(self, show: Any, kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        super()._crashed(show, kind, problem, trace)
        if self._other:
            with contextlib.suppress(OSError):
                self._other.send(explain(problem))
            self._other = None

    def _ended(self) -> None:
        if self._other:  # it tells what it knows until nobody asks any more
            self._telling.join()
        super()._ended()

    def told(self) -> tuple[int, list[float], list[Mechanism]]:
        """Samples of a step on this rank, its losses, and proofs of what is set."""
        losses = [float(loss) for loss in self._script.losses]
        return self._script.samples_per_step, losses, self._setting.proofs()

    def train(self, *args: Any, **kwargs: Any) -> Procedure:
        told = yield from super().train(*args, **kwargs)
        return structs.replace(told, mechanisms=self._setting.proofs())
