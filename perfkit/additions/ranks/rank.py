"""The watcher in the process of a rank: it notes what the rank does, and never keeps it waiting.

Ranks that are stopped one by one would wait for each other for ever. So nothing is asked at a step's end: a
thread looks at the main thread's stack now and then, and answers for it.
"""

import atexit
import contextlib
import faulthandler
import functools
import multiprocessing.util
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
import zlib
from collections import defaultdict
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pkgutil import resolve_name
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from perfkit.additions.guard.outputs import Outputs, clock
from perfkit.additions.lines import Sampler
from perfkit.additions.ranks import messages
from perfkit.additions.ranks.messages import BUFFERS, Ddp, Exchange, LoaderOfRank, Stack, State, StepOfRank
from perfkit.additions.ranks.setting import Setting, buckets_of, join
from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.loaders import Loaders
from perfkit.additions.scripts.run_account import EVALUATION, OWN, RunAccount
from perfkit.additions.scripts.script import Script, ScriptStep, is_capturing
from perfkit.additions.scripts.training import Models, Updates
from perfkit.additions.tensors import first_tensor
from perfkit.process.failures import explain

EVERY_S = 0.1  # seconds between looks at the stack, of 0.2 ms each
_BEAT_S = 0.5  # seconds between signs of life
_EACH = 1  # of how many passes torch times one
_TENTH = 10
NEVER = 1 << 30
_SWITCH_S = 3e-4
"""How long the main thread goes on once a look is due: longer than for a few steps, as looks go on here."""
_READING = ((0.012, 1), (0.006, 2), (0.003, 4), (0.0, 8))
"""Backward passes that take so long: each how many-th step is read for the exchange, which takes 50 µs."""
_KEPT = 4000  # how many steps are told of
_ALONE = 20  # after so many steps without a group of ranks, a process trains alone
_ASKED = "perfkit/asked"  # a key in the store of the launch
_FAR_S = 4.0  # seconds for which answers there are waited for
_MOST_STEPS = 500  # in an answer there
_MOST_STACKS = 100
_ROWS = 24  # first steps whose rows are compared
_ROWS_OF_A_BATCH = 32  # as many as suffice to tell batches apart
_BYTES_OF_A_ROW = 4096
_MOST_ROWS = 4096  # of a step, which may have many batches, or never end
_WEIGHED = (3, 20, 100, 400)  # steps after which the weights are compared
_MOST_BYTES = 32 << 20  # of the weights that are compared


@dataclass
class StepUnderWay:
    """Its exchange of gradients, in seconds and times, and the elements of its inputs."""

    exposed: float = 0.0
    hidden: float = 0.0
    syncs: int = 0
    elements: int = 0
    is_read: bool = True  # whether torch has timed all of its exchange


@dataclass
class SeenDdp:
    """A model: the line that made it, what torch told of it last, and when that exchange ended."""

    where: str
    told: Any
    ended: int = 0


class LineToWatcher:
    """The line to whoever watches. Two threads say something, and the main one closes it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._questions = select.poll()  # which `connection.poll` would make in each turn
        self._questions.register(connection, select.POLLIN)
        self.is_over = False

    def send(self, message: messages.Message) -> None:
        """Says something; that nobody listens any more shows when a question is awaited."""
        if not self.is_over:
            with self._sending, contextlib.suppress(OSError):
                self._connection.send_bytes(msgspec.json.encode(message))

    def is_asked(self, seconds: float) -> bool:
        """Waits for a question."""
        with contextlib.suppress(EOFError, OSError):
            if self._questions.poll(1000 * seconds):
                self._connection.recv_bytes()
                return True
            return False
        if not self.is_over:  # whoever watched is gone: nothing of it may be left
            os._exit(1)
        return False

    def close(self) -> None:
        """The rank has ended, or this process is not one."""
        self.is_over = True  # the other thread may be reading
        self._connection.close()


class Rank:
    """A part of the script: what its steps were, what it exchanged, and on which data it trained."""

    def __init__(self, settings: dict[str, Any], files: Outputs) -> None:
        self.script = script = Script(settings, files)
        self._seen = State(rank=0)  # as far as it is noted when it happens
        self._line: LineToWatcher | None = None  # once it has joined
        self._thread = threading.main_thread()  # which trains
        self._world = 1
        self._store: Any = None  # that of the launch, where ranks are on several nodes
        self._stepped_at = clock()
        self._step = StepUnderWay()
        self._exchanges = dict[tuple[str, str], Exchange]()
        self._ddps = dict[Any, SeenDdp]()
        self._epochs = defaultdict[int, list[list[int]]](list)  # by the data set
        self._epoch: Any = None  # the sampler's iterator
        self._shortest_backward = float("inf")
        hooks.check()
        hooks.around(torch.autograd, "backward", self._backward)  # within that of `Updates`
        self._account = RunAccount(script)
        self._setting = Setting(script, settings["ranked"])
        self._sampler = Sampler(self._account.part_now, script.place)
        script.parts += [Loaders(script), Models(script), Updates(script), self._account, self._setting, self]
        for module in (dist, distributed_c10d):
            hooks.around(module, "init_process_group", self._join)
            for name in hooks.TABLES["collectives"]["names"]:
                hooks.around(module, name, functools.partial(self._collective, name))
        hooks.around(DistributedDataParallel, "__init__", self._make_ddp)
        hooks.around(DistributedDataParallel, "_sync_buffers", functools.partial(self._collective, BUFFERS))
        hooks.around(resolve_name(hooks.ITERATOR), "_next_index", self._next_index)
        hooks.around(sys, "excepthook", self._crashed)
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._close)  # a process that a rank forks is not a rank

    def _join(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """A process is a rank once it has joined the group of all."""
        result = plain(*args, **kwargs)
        if self._line is None and (joined := join(self.script, [self._account, self])):
            hello, connection = joined
            self._line = LineToWatcher(connection)
            self._seen.rank = hello.rank
            self._world = hello.world
            multiprocessing.util.Finalize(None, self._end, exitpriority=0)  # what is forked has no `atexit`
            if hello.local < hello.world:
                self._store = self._own_line_to_the_store()
            self._show_stacks()
            sys.setswitchinterval(_SWITCH_S)
            threading.Thread(target=self._attend, args=(self._line,), name="perfkit", daemon=True).start()
        return result

    def _own_line_to_the_store(self) -> Any:
        """A line of our own: what waits for something on the script's would hold this one up."""
        address = os.environ.get("MASTER_ADDR", "")
        port = int(os.environ.get("MASTER_PORT", "0"))
        try:
            return resolve_name("torch.distributed.TCPStore")(address, port, wait_for_workers=False)
        except (RuntimeError, ValueError) as problem:
            self.script.note(f"ranks of other nodes are not heard of: {problem}")
            return None

    def _show_stacks(self) -> None:
        """Where even the other threads stand still, Python itself writes the stacks at a signal."""
        if signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
            path = os.path.join(self.script.settings["temporary"], f"stacks{self._seen.rank}")
            self._stacks = open(path, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
            faulthandler.register(signal.SIGUSR2, self._stacks)

    def _collective(self, name: str, plain: Any, *args: Any, **kwargs: Any) -> Any:
        is_main = threading.current_thread() is self._thread
        is_of_hook = self.script.part == "backward" and kwargs.get("async_op")  # gradients are counted anyway
        if self._seen.inside or not is_main or is_of_hook or torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        where = next(self._frames(sys._getframe(1)), "")
        start = clock()
        self._seen.inside = name
        try:
            with self.script.doing("exchange"):
                return plain(*args, **kwargs)
        finally:
            self._seen.inside = ""
            known = self._exchanges.get((name, where), Exchange(name, where, 0, 0.0))
            seconds = known.seconds + clock() - start
            self._exchanges[name, where] = Exchange(name, where, known.count + 1, seconds)

    def _make_ddp(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        plain(model, *args, **kwargs)
        where = next(self._frames(sys._getframe(1)), "")
        self._ddps[model] = SeenDdp(where, model.logger._get_ddp_logging_data())
        # On a GPU, torch waits for the device in each pass that it times: the first ten, then these.
        model._set_ddp_runtime_logging_sample_rate(_TENTH)

    def have_timed(self, rate: int) -> None:
        """Has torch time each so many-th pass. On a CPU it then works in the next forward pass, for 50 µs."""
        for model in self._ddps:
            if model.device_type == "cpu":
                model._set_ddp_runtime_logging_sample_rate(rate)

    def _backward(self, plain: Any, *args: Any, **kwargs: Any) -> None:
        """Torch itself times the exchange of a model's gradients; here that is read after each."""
        if not self.script.backwards:
            self._seen.weights[0] = _weights_sum(self.script.parameters())
        self.have_timed(_EACH)
        start = clock()
        plain(*args, **kwargs)
        self._read_exchange(clock() - start)

    def _read_exchange(self, took: float) -> None:
        self._shortest_backward = min(self._shortest_backward, took)
        every = next(count for least, count in _READING if self._shortest_backward >= least)
        is_left_out = self.script.steps.count % every and took < 2 * self._shortest_backward
        if is_left_out or is_capturing():  # during a capture nothing can be read
            self._step.is_read = False
            return
        for model, seen in self._ddps.items():
            model.logger.set_runtime_stats_and_log()  # torch itself does so in the next forward pass
            told = model.logger._get_ddp_logging_data()
            times = told.ints_map  # its texts are made only when they are asked for, which takes longer
            end = times.get("backward_comm_time_end", 0)
            is_on_cpu = model.device_type == "cpu"
            if end in (0, seen.ended):  # it had no part in this pass, or exchanges nothing
                if not is_on_cpu and model.require_forward_param_sync:
                    self._step.is_read = False  # torch has not timed this pass
                continue
            seen.told = told
            seen.ended = end
            hidden = max(0.0, times["backward_compute_comm_overlap_time"] / 1e9)
            exposed = max(0.0, times["backward_comm_time"] / 1e9 - hidden)
            # On a GPU, the pass has only been launched by now.
            self._step.exposed += min(took, exposed) if is_on_cpu else exposed
            self._step.hidden += hidden
            self._step.syncs += 1

    def _next_index(self, plain: Any, iterator: Any) -> Any:
        indices = plain(iterator)
        if iterator._sampler_iter is not self._epoch and isinstance(indices, list):
            self._epoch = iterator._sampler_iter
            epochs = self._epochs[id(iterator._dataset)]
            if len(epochs) < _ROWS:
                epochs.append([index for index in indices[:_ROWS_OF_A_BATCH] if isinstance(index, int)])
        return indices

    def on_input(self, given: Any) -> None:
        self._thread = threading.current_thread()  # Ray trains in another one than that which has joined
        tensor = first_tensor(given)
        if tensor is None or is_capturing():
            return
        self._step.elements += tensor.numel()
        count = self.script.steps.count
        if count < _ROWS:
            rows = self._seen.rows.setdefault(count, [])
            if len(rows) < _MOST_ROWS:
                rows += _row_sums(tensor.detach())
                self.script.note_call("input")

    def on_steps(self, steps: list[ScriptStep]) -> None:
        count = len(steps)
        self._stepped_at = clock()
        if self._line is None:
            world = os.environ.get("WORLD_SIZE")
            if world == "1" or (world is None and self.script.steps.count >= _ALONE):
                self._join(lambda: None)  # many scripts make no group for a single rank
        exposed = self._step.exposed / count
        for number, step in enumerate(steps, self.script.steps.count - count + 1):
            if number in _WEIGHED:
                self._seen.weights[number] = _weights_sum(self.script.parameters())
            if len(self._seen.steps) == _KEPT or self._line is None:
                continue
            exchange = step.spent["exchange"] + exposed
            backward = max(0.0, step.spent["backward"] - exposed)
            known = [step.waited, step.spent["forward"], backward, step.updated]
            own = max(0.0, step.seconds - sum(known) - exchange)
            seen = StepOfRank(
                number=number,
                seconds=step.seconds,
                parts=[*known, own, exchange],
                hidden=self._step.hidden / count,
                is_read=self._step.is_read,
                syncs=self._step.syncs // count,
                samples=step.samples,
                elements=self._step.elements // count,
                marks=sorted(step.marks),
            )
            self._seen.steps.append(seen)
        self._step = StepUnderWay()
        self.have_timed(NEVER)

    def _attend(self, line: LineToWatcher) -> None:
        """The thread that looks at the one that trains, says that it lives, and answers for it."""
        before = beaten = clock()
        while not line.is_over:
            is_asked = line.is_asked(EVERY_S)
            before = self._sampler.look(self._thread.ident or 0, before)
            if is_asked:
                line.send(self.state())
                self._gather(line)
            if before - beaten > _BEAT_S:
                beaten = before
                line.send(messages.Beat(steps=self.script.steps.count, part=self._part_now()))
                self._give()

    def _gather(self, line: LineToWatcher) -> None:
        """Rank 0 asks the ranks of other nodes, and hands their answers on; ranks on its own answer twice."""
        if self._store is None or self._seen.rank:
            return
        self._store.set(_ASKED, "1")
        until = clock() + _FAR_S
        waiting = set(range(1, self._world))
        while waiting and clock() < until:
            time.sleep(EVERY_S)
            for rank in [rank for rank in waiting if self._store.check([f"{_ASKED}/{rank}"])]:
                waiting.remove(rank)
                line.send(msgspec.json.decode(self._store.get(f"{_ASKED}/{rank}"), type=State))

    def _give(self) -> None:
        """A rank of another node answers into the store, once."""
        if self._store is not None and self._seen.rank and self._store.check([_ASKED]):
            state = self.state()
            few = sorted(state.stacks, key=lambda stack: -stack.seconds)[:_MOST_STACKS]
            small = msgspec.structs.replace(state, steps=state.steps[-_MOST_STEPS:], stacks=few)
            self._store.set(f"{_ASKED}/{self._seen.rank}", msgspec.json.encode(small))
            self._store = None

    def state(self, ended: bool = False, failure: str = "") -> State:
        """All that was seen until now."""
        script = self.script
        thread = sys._current_frames().get(self._thread.ident or 0)
        return msgspec.structs.replace(
            self._seen,
            ended=ended,
            failure=failure,
            stacks=[
                Stack(part, [f"{spot.file}:{spot.line}" for spot in stack], seconds)
                for (part, stack), seconds in dict(self._sampler.times).items()
            ],
            exchanges=list(self._exchanges.values()),
            loader=self._loader(),
            ddps=[_ddp(model, seen) for model, seen in self._ddps.items()],
            threads=torch.get_num_threads(),
            device=script.device.type,
            gpu=f"{socket.gethostname()} {script.device}" if script.device.type == "cuda" else "",
            backward=self._sites("backward"),
            inputs=self._sites("input"),
            at=[] if ended else [*self._frames(thread)],
            part=self._part_now(),
            count=script.steps.count,
            last_step_s=clock() - self._stepped_at,
            notes=[*script.notes, *script.files.notes],
            mechanisms=self._setting.proofs(),
        )

    def _part_now(self) -> str:
        """What it does at this moment; calls of a model inside another one, `model.module`, are not seen."""
        evaluates = any(not model.module.training for model in self._ddps)
        part = self._account.part_now()
        return EVALUATION if part == OWN and evaluates else part

    def _loader(self) -> LoaderOfRank | None:
        loader: Any = self.script.loader
        if loader is None:
            return None
        sampler, batches = (getattr(loader, name, None) for name in ("sampler", "batch_sampler"))
        knows = ("num_replicas", "num_processes", "world_size")
        samplers = (sampler, batches, getattr(batches, "sampler", None))
        is_random = isinstance(sampler, torch.utils.data.RandomSampler)
        rows = drawn = None
        with contextlib.suppress(TypeError, NotImplementedError, AttributeError):
            drawn = len(loader.sampler)
            rows = len(loader.dataset)
        return LoaderOfRank(
            where=next(iter(self._sites("loader")), ""),
            workers=getattr(loader, "num_workers", 0),
            rows=rows,
            drawn=drawn,
            is_divided=any(hasattr(each, name) for each in samplers for name in knows),
            is_shuffled=is_random or bool(getattr(sampler, "shuffle", False)),
            epochs=self._epochs.get(id(getattr(loader, "dataset", None)), []),
        )

    def _sites(self, role: str) -> list[str]:
        return [site.place for site in self.script.sites[role] if site.frames]

    def _frames(self, frame: Any) -> Any:
        """The user's lines of a stack, the innermost first."""
        for each, line in traceback.walk_stack(frame):
            if file := self._sampler.users(each.f_code.co_filename):
                yield f"{file}:{line}"

    def _crashed(self, show: Any, kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        show(kind, problem, trace)
        self._end(explain(problem).what)

    def _end(self, failure: str = "") -> None:
        if self._line:
            self._line.send(self.state(True, failure))
        self._close()

    def _close(self) -> None:
        if self._line:
            self._line.close()


def _row_sums(tensor: torch.Tensor) -> list[int]:
    """A checksum of each of the first rows."""
    rows = tensor[:_ROWS_OF_A_BATCH].cpu()
    return [zlib.crc32(_bytes(row)[:_BYTES_OF_A_ROW]) for row in rows if row.numel()]


def _weights_sum(parameters: list[Any]) -> int:
    """A checksum of the parameters, as far as `_MOST_BYTES`."""
    total = seen = 0
    for parameter in parameters:
        if seen < _MOST_BYTES:
            raw = _bytes(parameter.detach())
            total = zlib.crc32(raw, total)
            seen += len(raw)
    return total


def _bytes(tensor: torch.Tensor) -> Any:
    return tensor.contiguous().cpu().reshape(-1).view(torch.uint8).numpy()


def _ddp(model: Any, seen: SeenDdp) -> Ddp:
    """By what torch told in the main thread: another one would wait there while gradients are exchanged."""
    told = seen.told.strs_map | seen.told.ints_map
    searches = told.get("find_unused_parameters") and not model.static_graph
    return Ddp(
        where=seen.where,
        buckets=buckets_of(told),
        bytes=told.get("total_parameter_size_bytes", 0),
        needs_no_search=bool(searches and not told.get("unused_parameter_size")),
        buffers=sum(1 for _ in model.module.buffers()),
        backend=str(told.get("backend_name", "")),
        cap=told.get("bucket_cap_bytes", 0),
        is_compiled=hasattr(model.module, "_orig_mod"),
        sync_norms=sum(isinstance(part, torch.nn.SyncBatchNorm) for part in model.modules()),
    )
