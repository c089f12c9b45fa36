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
from perfkit.additions.scripts.script import Script, ScriptStep, first_tensor, is_capturing
from perfkit.additions.scripts.training import Models, Updates
from perfkit.process.failures import explain

EVERY_S = 0.1  # seconds between looks at the stack, of 0.2 ms each
_BEAT_S = 0.5  # seconds between signs of life
_EACH = 1  # of how many passes torch times one
_TENTH = 10
_NEVER = 1 << 30
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
_ROWS, _ROWS_OF_A_BATCH, _BYTES_OF_A_ROW = 24, 32, 4096
"""First steps whose rows are compared, and as much of each as suffices to tell rows apart."""
_WEIGHED = (3, 20, 100, 400)  # steps after which the weights are compared
_MOST_BYTES = 32 << 20  # of the weights that are compared
COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "barrier",
    "all_to_all_single", "broadcast", "broadcast_object_list", "gather", "gather_object", "reduce",
    "monitored_barrier", "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list",
)  # fmt: skip


class Rank:
    """A part of the script: what its steps were, what it exchanged, and on which data it trained."""

    def __init__(self, settings: dict[str, Any], files: Outputs) -> None:
        self.script = script = Script(settings, files)
        self._line: Connection | None = None
        self._is_over = False
        self._sending = threading.Lock()
        self._main = threading.main_thread()
        self._rank, self._world = 0, 1
        self._stepped_at = clock()
        self._store: Any = None  # that of the launch, where ranks are on several nodes
        self._steps = list[StepOfRank]()
        self._exchanges = dict[tuple[str, str], Exchange]()
        self._ddps: dict[Any, tuple[str, Any, int]] = {}  # their places, what torch told last, and of when
        self._rows, self._weights = dict[int, list[int]](), dict[int, int]()  # checksums by step
        self._epochs = defaultdict[int, list[list[int]]](list)  # by the data set
        self._epoch: Any = None  # the sampler's iterator
        self._inside = ""
        self._shortest_backward = float("inf")
        self._begin_step()
        hooks.check()
        hooks.around(torch.autograd, "backward", self._backward)  # within that of `Updates`
        self._account = RunAccount(script)
        self._setting = Setting(script, settings["ranked"])
        self._sampler = Sampler(self._account.part_now, script.place)
        script.parts += [Loaders(script), Models(script), Updates(script), self._account, self._setting, self]
        for module in (dist, distributed_c10d):
            hooks.around(module, "init_process_group", self._join)
            for name in COLLECTIVES:
                hooks.around(module, name, functools.partial(self._collective, name))
        hooks.around(DistributedDataParallel, "__init__", self._make_ddp)
        hooks.around(DistributedDataParallel, "_sync_buffers", functools.partial(self._collective, BUFFERS))
        hooks.around(resolve_name(hooks.ITERATOR), "_next_index", self._next_index)
        hooks.around(sys, "excepthook", self._crashed)
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._close)  # a process that a rank forks is not a rank

    # ------------------------------------------------------------ events

    def _join(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """A process is a rank once it has joined the group of all."""
        result = plain(*args, **kwargs)
        if self._line is None and (joined := join(self.script.settings["address"])):
            hello, self._line = joined
            self._rank, self._world, self._is_over = hello.rank, hello.world, False  # it may have been forked
            multiprocessing.util.Finalize(None, self._end, exitpriority=0)  # what is forked has no `atexit`
            if hello.local < hello.world:
                self._store = self._own_line_to_the_store()
            self._show_stacks()
            sys.setswitchinterval(_SWITCH_S)
            threading.Thread(target=self._attend, name="perfkit", daemon=True).start()
        return result

    def _own_line_to_the_store(self) -> Any:
        """A line of our own: what waits for something on the script's would hold this one up."""
        address, port = os.environ.get("MASTER_ADDR", ""), int(os.environ.get("MASTER_PORT", "0"))
        try:
            return resolve_name("torch.distributed.TCPStore")(address, port, wait_for_workers=False)
        except (RuntimeError, ValueError) as problem:
            self.script.note(f"ranks of other nodes are not heard of: {problem}")
            return None

    def _show_stacks(self) -> None:
        """Where even the other threads stand still, Python itself writes the stacks at a signal."""
        if signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
            path = os.path.join(self.script.settings["temporary"], f"stacks{self._rank}")
            self._stacks = open(path, "w", encoding="utf-8")  # noqa: SIM115 - as long as the process lives
            faulthandler.register(signal.SIGUSR2, self._stacks)

    def _collective(self, name: str, plain: Any, *args: Any, **kwargs: Any) -> Any:
        is_main = threading.current_thread() is self._main
        is_of_hook = self.script.part == "backward" and kwargs.get("async_op")  # gradients are counted anyway
        if self._inside or not is_main or is_of_hook or torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        where = next(self._frames(sys._getframe(1)), "")
        start = clock()
        self._inside = name
        try:
            with self.script.doing("exchange"):
                return plain(*args, **kwargs)
        finally:
            self._inside = ""
            known = self._exchanges.get((name, where), Exchange(name, where, 0, 0.0))
            seconds = known.seconds + clock() - start
            self._exchanges[name, where] = Exchange(name, where, known.count + 1, seconds)

    def _make_ddp(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        plain(model, *args, **kwargs)
        self._ddps[model] = next(self._frames(sys._getframe(1)), ""), model.logger._get_ddp_logging_data(), 0
        # On a GPU, torch waits for the device in each pass that it times: the first ten, then these.
        model._set_ddp_runtime_logging_sample_rate(_TENTH)

    def _have_timed(self, rate: int) -> None:
        """On a CPU: what torch has timed it also works out in the next forward pass, which takes 50 µs."""
        for model in self._ddps:
            if model.device_type == "cpu":
                model._set_ddp_runtime_logging_sample_rate(rate)

    def _backward(self, plain: Any, *args: Any, **kwargs: Any) -> None:
        """Torch itself times the exchange of a model's gradients; here that is read after each."""
        if not self.script.backwards:
            self._weights[0] = _weights_sum(self.script.parameters())
        self._have_timed(_EACH)
        start = clock()
        plain(*args, **kwargs)
        self._read_exchange(clock() - start)

    def _read_exchange(self, took: float) -> None:
        self._shortest_backward = min(self._shortest_backward, took)
        every = next(count for least, count in _READING if self._shortest_backward >= least)
        is_left_out = self.script.steps.count % every and took < 2 * self._shortest_backward
        if is_left_out or is_capturing():  # during a capture nothing can be read
            self._is_read = False
            return
        for model, (where, _, before) in self._ddps.items():
            model.logger.set_runtime_stats_and_log()  # torch itself does so in the next forward pass
            told = model.logger._get_ddp_logging_data()
            times = told.ints_map  # its texts are made only when they are asked for, which takes longer
            end = times.get("backward_comm_time_end", 0)
            is_on_cpu = model.device_type == "cpu"
            if end in (0, before):  # it had no part in this pass, or exchanges nothing
                if not is_on_cpu and model.require_forward_param_sync:
                    self._is_read = False  # torch has not timed this pass
                continue
            self._ddps[model] = where, told, end
            hidden = max(0.0, times["backward_compute_comm_overlap_time"] / 1e9)
            exposed = max(0.0, times["backward_comm_time"] / 1e9 - hidden)
            # On a GPU, the pass has only been launched by now.
            self._exposed += min(took, exposed) if is_on_cpu else exposed
            self._hidden += hidden
            self._syncs += 1

    def _next_index(self, plain: Any, iterator: Any) -> Any:
        indices = plain(iterator)
        if iterator._sampler_iter is not self._epoch and isinstance(indices, list):
            self._epoch = iterator._sampler_iter
            epochs = self._epochs[id(iterator._dataset)]
            if len(epochs) < _ROWS:
                epochs.append([index for index in indices[:_ROWS_OF_A_BATCH] if isinstance(index, int)])
        return indices

    def on_input(self, given: Any) -> None:
        self._main = threading.current_thread()  # Ray trains in another one than that which has joined
        tensor = first_tensor(given)
        if tensor is None or is_capturing():
            return
        self._elements += tensor.numel()
        if self.script.steps.count < _ROWS:
            self._rows.setdefault(self.script.steps.count, []).extend(_row_sums(tensor.detach()))
            self.script.note_call("input")

    def on_steps(self, steps: list[ScriptStep]) -> None:
        count = len(steps)
        self._stepped_at = clock()
        if self._line is None:
            world = os.environ.get("WORLD_SIZE")
            if world == "1" or (world is None and self.script.steps.count >= _ALONE):
                self._join(lambda: None)  # many scripts make no group for a single rank
        exposed = self._exposed / count
        for number, step in enumerate(steps, self.script.steps.count - count + 1):
            if number in _WEIGHED:
                self._weights[number] = _weights_sum(self.script.parameters())
            if len(self._steps) == _KEPT or self._line is None:
                continue
            exchange = step.spent["exchange"] + exposed
            backward = max(0.0, step.spent["backward"] - exposed)
            known = [step.waited, step.spent["forward"], backward, step.updated]
            own = max(0.0, step.seconds - sum(known) - exchange)
            self._steps.append(
                StepOfRank(
                    number=number,
                    seconds=step.seconds,
                    parts=[*known, own, exchange],
                    hidden=self._hidden / count,
                    is_read=self._is_read,
                    syncs=self._syncs // count,
                    samples=step.samples,
                    elements=self._elements // count,
                    marks=sorted(step.marks),
                )
            )
        self._begin_step()
        self._have_timed(_NEVER)

    def _begin_step(self) -> None:
        self._exposed = self._hidden = 0.0
        self._syncs = self._elements = 0
        self._is_read = True

    # ------------------------------------------------------------ answering

    def _attend(self) -> None:
        """The thread that looks at the main one, says that it lives, and answers for it."""
        line = self._line
        assert line is not None
        questions = select.poll()  # which `line.poll` would make in each turn
        questions.register(line, select.POLLIN)
        before = beaten = clock()
        while not self._is_over:
            is_asked = questions.poll(1000 * EVERY_S)
            before = self._sampler.look(self._main.ident or 0, before)
            try:
                if is_asked:
                    line.recv_bytes()
                    self._send(self.state())
                    self._gather()
                if before - beaten > _BEAT_S:
                    beaten = before
                    self._send(messages.Beat(steps=self.script.steps.count, part=self._part_now()))
                    self._give()
            except (EOFError, OSError):
                if not self._is_over:  # whoever watched is gone: nothing of it may be left
                    os._exit(1)

    def _gather(self) -> None:
        """Rank 0 asks the ranks of other nodes, and hands their answers on; ranks on its own answer twice."""
        if self._store is None or self._rank:
            return
        self._store.set(_ASKED, "1")
        until, waiting = clock() + _FAR_S, set(range(1, self._world))
        while waiting and clock() < until:
            time.sleep(EVERY_S)
            for rank in [rank for rank in waiting if self._store.check([f"{_ASKED}/{rank}"])]:
                waiting.remove(rank)
                self._send(msgspec.json.decode(self._store.get(f"{_ASKED}/{rank}"), type=State))

    def _give(self) -> None:
        """A rank of another node answers into the store, once."""
        if self._store is not None and self._rank and self._store.check([_ASKED]):
            state = self.state()
            few = sorted(state.stacks, key=lambda stack: -stack.seconds)[:_MOST_STACKS]
            small = msgspec.structs.replace(state, steps=state.steps[-_MOST_STEPS:], stacks=few)
            self._store.set(f"{_ASKED}/{self._rank}", msgspec.json.encode(small))
            self._store = None

    def state(self, ended: bool = False, failure: str = "") -> State:
        """All that was seen until now."""
        script = self.script
        main = sys._current_frames().get(self._main.ident or 0)
        return State(
            rank=self._rank,
            ended=ended,
            failure=failure,
            steps=list(self._steps),
            stacks=[
                Stack(part, [f"{spot.file}:{spot.line}" for spot in stack], seconds)
                for (part, stack), seconds in dict(self._sampler.times).items()
            ],
            exchanges=list(self._exchanges.values()),
            loader=self._loader(),
            ddps=[_ddp(model, where, told) for model, (where, told, _) in self._ddps.items()],
            rows=dict(self._rows),
            weights=dict(self._weights),
            threads=torch.get_num_threads(),
            device=script.device.type,
            gpu=f"{socket.gethostname()} {script.device}" if script.device.type == "cuda" else "",
            backward=self._sites("backward"),
            inputs=self._sites("input"),
            at=[] if ended else [*self._frames(main)],
            inside=self._inside,
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
            rows, drawn = len(loader.dataset), len(loader.sampler)
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
        frames = [site.frames[0] for site in self.script.sites[role] if site.frames]
        return [f"{frame.file}:{frame.line}" for frame in frames]

    def _frames(self, frame: Any) -> Any:
        """The user's lines of a stack, the innermost first."""
        for each, line in traceback.walk_stack(frame):
            if file := self._sampler.users(each.f_code.co_filename):
                yield f"{file}:{line}"

    def _send(self, message: messages.Message) -> None:
        with self._sending, contextlib.suppress(OSError):  # that nobody listens any more shows in `_attend`
            if self._line and not self._line.closed:
                self._line.send_bytes(msgspec.json.encode(message))

    def _crashed(self, show: Any, kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        show(kind, problem, trace)
        self._end(explain(problem).what)

    def _end(self, failure: str = "") -> None:
        self._send(self.state(True, failure))
        self._close()

    def _close(self) -> None:
        self._is_over = True  # the other thread may be reading while the line is closed
        if self._line and not self._line.closed:
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


def _ddp(model: Any, where: str, data: Any) -> Ddp:
    """By what torch told in the main thread: another one would wait there while gradients are exchanged."""
    told = data.strs_map | data.ints_map
    searches = told.get("find_unused_parameters") and not model.static_graph
    return Ddp(
        where=where,
        buckets=buckets_of(told),
        bytes=told.get("total_parameter_size_bytes", 0),
        needs_no_search=bool(searches and not told.get("unused_parameter_size")),
        buffers=sum(1 for _ in model.module.buffers()),
        backend=str(told.get("backend_name", "")),
        cap=told.get("bucket_cap_bytes", 0),
        is_compiled=hasattr(model.module, "_orig_mod"),
        sync_norms=sum(isinstance(part, torch.nn.SyncBatchNorm) for part in model.modules()),
    )
