"""What ranks answer while launches are compared; in their own processes."""

import contextlib
import inspect
import os
import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from msgspec import structs
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from perfkit.additions.guard.outputs import Outputs
from perfkit.additions.ranks.joining import join
from perfkit.additions.ranks.messages import Told
from perfkit.additions.ranks.switches import FLAGS, NO_SYNC, OF_DDP, THREADS
from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.questions import Questions
from perfkit.additions.scripts.script import ScriptStep
from perfkit.process.failures import explain
from perfkit.results.schema import Mechanism
from perfkit.worker import checks
from perfkit.worker.procedure import Procedure

_MB, _REBUILT = 1 << 20, 4
"""Steps after which the buckets of a model are those that it keeps."""


class RankQuestions(Questions):
    """Rank 0 is asked at its steps; the others tell what they know at any time, from a thread."""

    def __init__(self, settings: dict[str, Any], files: Outputs) -> None:
        seed = settings["seed"] + int(os.environ.get("RANK", "0"))
        line, _ = Pipe()
        super().__init__(settings | {"seed": seed, "line": os.dup(line.fileno())}, files)
        self.line.close()  # until this process is rank 0
        self._other: Connection | None = None  # of another rank
        self._wanted: dict[str, Any] = settings["ranked"]
        self._ddps: list[Any] = []
        self._buckets = 0
        self._usual = self._passes = self._unsent = 0  # of a step; in the one under way; all without a send
        self._is_sent = self._were_sent = True
        for module in (dist, distributed_c10d):
            hooks.around(module, "init_process_group", self._join)
        hooks.around(DistributedDataParallel, "__init__", self._make)
        if self._wanted.get(NO_SYNC):
            hooks.around(DistributedDataParallel, "forward", self._forward)

    # ------------------------------------------------------------ events

    def _join(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        if self.line.closed and not self._other and (joined := join(self._script.settings["address"])):
            hello, line = joined
            os.register_at_fork(after_in_child=line.close)
            if hello.rank:
                self._other = line
                self._telling = threading.Thread(target=self._tell, args=(line,), daemon=True)
                self._telling.start()
            else:
                self.line = line
        return result

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
        """Another rank tells what it knows until nobody asks any more."""
        if self._other:
            self._telling.join()
        super()._ended()

    def _make(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(plain).bind(model, *args, **kwargs).arguments
        given |= {OF_DDP[name]: value for name, value in self._wanted.items() if name in OF_DDP}
        del given["self"]
        plain(model, **given)
        self._ddps.append(model)
        self._script.note_call("ddp")

    def _forward(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Gradients are sent in the last pass of a step, which has as many as the step before."""
        if torch.is_grad_enabled() and model.training:
            self._passes += 1
            self._is_sent = self._passes >= self._usual
            self._unsent += not self._is_sent
            model.require_backward_grad_sync = self._is_sent
        return plain(model, *args, **kwargs)

    def on_steps(self, steps: list[ScriptStep]) -> None:
        self._were_sent &= self._is_sent
        self._usual, self._passes = self._passes // len(steps), 0
        if self._ddps and self._script.steps.count <= _REBUILT:
            # In the main thread: another one would wait there for the backward pass under way.
            told = self._ddps[0]._get_ddp_logging_data()
            sizes = str(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes", ""))
            self._buckets = len(sizes.split(","))
        super().on_steps(steps)

    # ------------------------------------------------------------ questions

    def told(self) -> Told:
        """What this rank knows of its training."""
        losses = [float(loss) for loss in self._script.losses]
        return Told(losses, self._script.samples_per_step, self._proofs())

    def train(self, *args: Any, **kwargs: Any) -> Procedure:
        told = yield from super().train(*args, **kwargs)
        return structs.replace(told, mechanisms=self._proofs())

    def _proofs(self) -> list[Mechanism]:
        read = self._read()
        own = [
            Mechanism(name, read[name][0] == value, read[name][1])
            for name, value in self._wanted.items()
            if name in read
        ]
        return checks.verify(self._script, self._script.toggles) + own

    def _read(self) -> dict[str, tuple[Any, str]]:
        """The switches of ranks as they are, and how that is known."""
        threads = torch.get_num_threads()
        read: dict[str, tuple[Any, str]] = {THREADS: (threads, f"torch computes with {threads} threads")}
        model = self._ddps[0] if self._ddps else None
        if model is None:
            return read | dict.fromkeys([*OF_DDP, NO_SYNC], (None, "no DistributedDataParallel was made"))
        for name in FLAGS:
            value = bool(getattr(model, name))
            read[name] = value, f"the model's {name} is {value}"
        size = int(model.bucket_bytes_cap) // _MB
        read["bucket_mb"] = size, f"buckets of at most {size} MB: there are {self._buckets}"
        is_on = bool(self._unsent) and self._were_sent
        text = f"{self._unsent} of {self._script.backwards} backward passes sent nothing"
        if not self._were_sent:
            text += ", and a step was taken before its gradients were sent"
        read[NO_SYNC] = is_on, text
        return read
