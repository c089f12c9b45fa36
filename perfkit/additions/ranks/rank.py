"""A rank, in its own process: it notes what it does, and tells it; nothing of that keeps it waiting.

Ranks that are stopped one by one would wait for each other for ever. So nothing is asked at a step's end: the
thread that trains notes what it does (`RankRecorder`), and another one tells it (`RankReporter`).
"""

import atexit
import contextlib
import faulthandler
import functools
import multiprocessing.util
import os
import signal
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pkgutil import resolve_name
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from msgspec import structs
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel

from perfkit.additions.guard.outputs import Outputs
from perfkit.additions.ranks import messages
from perfkit.additions.ranks.ddp import DdpExchange, Setting, StepExchange
from perfkit.additions.ranks.messages import BUFFERS, Exchange, Hello, LoaderOfRank, State, StepOfRank
from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.loaders import Loaders
from perfkit.additions.scripts.run_account import EVALUATION, OWN, RunAccount
from perfkit.additions.scripts.script import Part, Script, ScriptStep, is_capturing
from perfkit.additions.scripts.training import Models, Updates
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.lines import Sampler
from perfkit.additions.shared.tensors import checksum, first_tensor, tensors
from perfkit.process.failures import explain
from perfkit.worker.checks import facts

EVERY_S = 0.1  # seconds between looks at the stack, of 0.2 ms each
_BEAT_S = 0.5  # seconds between signs of life
_ASKED = "perfkit/asked"  # a key in the store of the launch
_FAR = timedelta(seconds=4)  # for which answers there are waited for
_MOST_STEPS = 500  # in an answer there
_MOST_STACKS = 100
_SWITCH_S = 3e-4  # how long a thread goes on once a look is due: longer than for a few steps, as looks go on
_ALONE = 20  # after so many steps without a group of ranks, a process trains alone
_KEPT = 4000  # how many steps are told of
_ROWS = 24  # first steps whose rows are compared
_ROWS_OF_A_BATCH = 32  # as many as suffice to tell batches apart
_ELEMENTS_OF_A_ROW = 1024
_MOST_ROWS = 4096  # of a step, which may have many batches, or never end
_WEIGHED = (3, 20, 100, 400)  # steps after which the weights are compared
_MOST_ELEMENTS = 1 << 16  # of each of the weights that are compared


class Joining(Part):
    """Makes this process a rank, once the script has made the group of all ranks: it then has `joined`.

    As a part of the script, it does so without a group, too, where the process trains alone. Where nobody
    listens, as on another machine, the process trains on, and the parts that would be `asked` note nothing.
    """

    def __init__(self, script: Script, asked: list[Any], joined: Callable[[Hello, Connection], None]) -> None:
        self._script = script
        self._asked = [*asked, self]
        self._joined = joined
        self._is_needed = True
        for module in (dist, distributed_c10d):
            hooks.around(module, "init_process_group", self._make_group)

    def _make_group(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(*args, **kwargs)
        self.join()
        return result

    def on_steps(self, _steps: list[ScriptStep]) -> None:
        """Many scripts make no group for a single rank."""
        world = os.environ.get("WORLD_SIZE")
        if world == "1" or (world is None and self._script.steps.count >= _ALONE):
            self.join()

    def join(self) -> None:
        """Joins as the rank that this process is; without a group of ranks, it is the only one."""
        if not self._is_needed:
            return
        rank, world = 0, 1
        if dist.is_initialized():
            rank, world = dist.get_rank(), dist.get_world_size()
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(self._script.settings["address"])
        except OSError as problem:
            self._script.parts[:] = [part for part in self._script.parts if part not in self._asked]
            print(f"perfkit cannot see rank {rank}, because nobody listens here: {problem}", file=sys.stderr)
            return
        self._is_needed = False
        line = Connection(sock.detach())
        local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or world
        restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
        hello = Hello(rank=rank, world=world, local=int(local), pid=os.getpid(), restart=restart)
        line.send_bytes(msgspec.json.encode(hello))
        self._joined(hello, line)


class RankRecorder(Part):
    """A part of the script that notes what it does. Only the thread that trains changes what is noted."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.account = RunAccount(script)
        self.setting = Setting(script, script.settings["ranked"])
        self.sampler = Sampler(self.account.part_now, script.place)
        self.exchange = DdpExchange(script, self.sampler)
        self.thread = threading.main_thread()  # which trains
        self.rank: int | None = None  # until the process has joined; steps before are not told
        self._seen = State(rank=0)  # as far as it is noted when it happens
        self._stepped_at = clock()
        self._elements = 0  # of the inputs of the step under way
        self._collectives = dict[tuple[str, str], Exchange]()
        self._epochs = defaultdict[int, list[list[int]]](list)  # by the data set
        self._epoch: Any = None  # the sampler's iterator

    def listen(self) -> None:
        """Sees the exchanges of the script, and what its samplers draw."""
        hooks.around(DistributedDataParallel, "__init__", self.exchange.make)
        hooks.around(torch.autograd, "backward", self.exchange.backward)
        for module in (dist, distributed_c10d):
            for name in hooks.TABLES["collectives"]["names"]:
                hooks.around(module, name, functools.partial(self._collective, name))
        hooks.around(DistributedDataParallel, "_sync_buffers", functools.partial(self._collective, BUFFERS))
        hooks.around(resolve_name(hooks.ITERATOR), "_next_index", self._next_index)

    def _collective(self, name: str, plain: Any, *args: Any, **kwargs: Any) -> Any:
        is_trainer = threading.current_thread() is self.thread
        is_of_hook = self.script.part == "backward" and kwargs.get("async_op")  # gradients are counted anyway
        if self._seen.inside or not is_trainer or is_of_hook or torch.compiler.is_compiling():
            return plain(*args, **kwargs)
        where = next(self.sampler.lines(sys._getframe(1)), "")
        start = clock()
        self._seen.inside = name
        try:
            with self.script.doing("exchange"):
                return plain(*args, **kwargs)
        finally:
            self._seen.inside = ""
            exchange = self._collectives.setdefault((name, where), Exchange(name, where))
            exchange.count += 1
            exchange.seconds += clock() - start

    def _next_index(self, plain: Any, iterator: Any) -> Any:
        indices = plain(iterator)
        if iterator._sampler_iter is not self._epoch and isinstance(indices, list):
            self._epoch = iterator._sampler_iter
            epochs = self._epochs[id(iterator._dataset)]
            if len(epochs) < _ROWS:
                epochs.append([index for index in indices[:_ROWS_OF_A_BATCH] if isinstance(index, int)])
        return indices

    def on_input(self, given: Any) -> None:
        self.thread = threading.current_thread()  # Ray trains in another one than that which has joined
        tensor = first_tensor(given)
        if tensor is None or is_capturing():
            return
        self._elements += tensor.numel()
        count = self.script.steps.count
        if count < _ROWS:
            self.script.note_call("input")
            if count == 0 and not self._seen.weights:  # they are as they were made
                self._weigh(0)
            rows = self._seen.rows.setdefault(count, [])
            if len(rows) < _MOST_ROWS and not self._are_divided():
                rows += _row_sums([each for each in tensors(given) if each.dim()])

    def _weigh(self, step: int) -> None:
        if not self._are_divided():
            self._seen.weights[step] = checksum(self.script.parameters(), _MOST_ELEMENTS)

    def _are_divided(self) -> bool:
        """Whether each rank has a part of the weights (a `DTensor`), on purpose; they may share rows, too."""
        return any(hasattr(each, "device_mesh") for each in self.script.parameters())

    def on_steps(self, steps: list[ScriptStep]) -> None:
        self._stepped_at = clock()
        exchange = self.exchange.end_step(len(steps))
        for number, step in enumerate(steps, self.script.steps.count - len(steps) + 1):
            if number in _WEIGHED:
                self._weigh(number)
            if self.rank is not None and len(self._seen.steps) < _KEPT:
                self._seen.steps.append(self._step(number, step, exchange, self._elements // len(steps)))
        self._elements = 0

    def _step(self, number: int, step: ScriptStep, exchange: StepExchange, elements: int) -> StepOfRank:
        backward = step.spent["backward"]
        exposed = exchange.exposed if exchange.is_read else min(exchange.exposed, backward)
        backward = max(0.0, backward - exposed)
        known = [step.waited, step.spent["forward"], backward, step.updated]
        exchanged = step.spent["exchange"] + exposed
        own = max(0.0, step.seconds - sum(known) - exchanged)
        return StepOfRank(
            number=number,
            seconds=step.seconds,
            parts=[*known, own, exchanged],
            hidden=exchange.hidden,
            is_read=exchange.is_read,
            syncs=exchange.syncs,
            samples=step.samples,
            elements=elements,
            marks=sorted(step.marks),
        )

    def snapshot(self) -> State:
        """What was noted until now, for any thread."""
        script = self.script
        return structs.replace(
            self._seen,
            rank=self.rank,
            exchanges=list(self._collectives.values()),
            loader=self._loader(),
            ddps=list(self.exchange.ddps()),
            threads=torch.get_num_threads(),
            is_of_agent="TORCHELASTIC_RUN_ID" in os.environ,
            device=script.device.type,
            gpu=f"{socket.gethostname()} {facts(script.device).uuid}" if script.device.type == "cuda" else "",
            backward=self._sites("backward"),
            inputs=self._sites("input"),
            part=self.part_now(),
            count=script.steps.count,
            last_step_s=clock() - self._stepped_at,
            notes=[*script.notes, *script.files.notes],
            mechanisms=self.setting.proofs(),
        )

    def part_now(self) -> str:
        """What it does at this moment; calls of a model inside another one, `model.module`, are not seen."""
        part = self.account.part_now()
        evaluates = any(not model.module.training for model in self.exchange.models)
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


def _row_sums(inputs: list[torch.Tensor]) -> list[int]:
    """A checksum of each of the first rows, over all inputs that have as many rows as the first one."""
    if any(each.layout != torch.strided or each.is_nested or hasattr(each, "device_mesh") for each in inputs):
        return []  # these have no rows to be taken one by one
    alike = [each[:_ROWS_OF_A_BATCH].detach().cpu() for each in inputs if len(each) == len(inputs[0])]
    return [checksum(row, _ELEMENTS_OF_A_ROW) for row in zip(*alike, strict=True)]


class RankReporter:
    """Tells what a recorder has noted, and where the rank was whenever its stack was looked at.

    Two threads say something on the `line` to whoever watches; the one that trains closes it.
    """

    def __init__(self, recorder: RankRecorder, hello: Hello, line: Connection) -> None:
        self._recorder = recorder
        self._hello = hello
        self._line = line
        self._sending = threading.Lock()
        self._over = threading.Event()
        self._store: Any = None
        if hello.local < hello.world:
            self._with_other_nodes(self._join_store)

    def _with_other_nodes(self, exchange: Callable[[], None]) -> None:
        """Goes on without them where the store cannot be reached: it ends with its own node."""
        try:
            exchange()
        except (RuntimeError, ValueError) as problem:
            self._store = None
            self._recorder.script.note(f"ranks of other nodes are not heard of: {problem}")

    def _join_store(self) -> None:
        """A line of our own: what waits for something on the script's would hold this one up."""
        address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
        if not (address and port):  # the ranks have met elsewhere, and the training waits for this line
            raise ValueError("MASTER_ADDR and MASTER_PORT are not set")
        store = resolve_name("torch.distributed.TCPStore")
        self._store = store(address, int(port), wait_for_workers=False, timeout=_FAR)

    def attend(self) -> None:
        """Looks at the thread that trains, says that it lives, and answers for it, until it has ended."""
        recorder = self._recorder
        before = beaten = clock()
        while not self._over.is_set():
            try:
                is_asked = self._line.poll(EVERY_S)
                if is_asked:
                    self._line.recv_bytes()
            except (EOFError, OSError):
                if not self._over.is_set():  # whoever watched is gone: nothing of it may be left
                    os._exit(1)
                return
            before = recorder.sampler.look(recorder.thread.ident or 0, before)
            if is_asked:
                self.send(self.state())
                self._with_other_nodes(self._gather)
            if before - beaten > _BEAT_S:
                beaten = before
                self.send(messages.Beat(steps=recorder.script.steps.count, part=recorder.part_now()))
                self._with_other_nodes(self._give)

    def send(self, message: messages.Message) -> None:
        """Says something; that nobody listens any more shows when a question is awaited."""
        if not self._over.is_set():
            with self._sending, contextlib.suppress(OSError):
                self._line.send_bytes(msgspec.json.encode(message))

    def _gather(self) -> None:
        """Rank 0 asks the ranks of other nodes, and hands their answers on; ranks on its own answer twice."""
        if self._store is None or self._hello.rank:
            return
        self._store.set(_ASKED, "1")
        keys = [f"{_ASKED}/{rank}" for rank in range(1, self._hello.world)]
        with contextlib.suppress(RuntimeError):  # some do not answer
            self._store.wait(keys, _FAR)
        for key in keys:
            if self._store.check([key]):
                self.send(msgspec.json.decode(self._store.get(key), type=State))

    def _give(self) -> None:
        """A rank of another node answers into the store, once."""
        if self._store is not None and self._hello.rank and self._store.check([_ASKED]):
            state = self.state()
            few = sorted(state.stacks, key=lambda stack: -stack.seconds)[:_MOST_STACKS]
            small = structs.replace(state, steps=state.steps[-_MOST_STEPS:], stacks=few)
            self._store.set(f"{_ASKED}/{self._hello.rank}", msgspec.json.encode(small))
            self._store = None

    def state(self) -> State:
        """All that was seen until now, and where the rank is."""
        frame = sys._current_frames().get(self._recorder.thread.ident or 0)
        stacks = [
            messages.Stack(part, [f"{spot.file}:{spot.line}" for spot in stack], seconds)
            for (part, stack), seconds in dict(self._recorder.sampler.times).items()
        ]
        at = list(self._recorder.sampler.lines(frame))
        return structs.replace(self._recorder.snapshot(), stacks=stacks, at=at)

    def end(self, failure: str = "") -> None:
        """Says that the rank has ended, and of what; then nothing more."""
        if not self._over.is_set():
            self.send(structs.replace(self.state(), ended=True, failure=failure, at=[]))
            self.close()

    def close(self) -> None:
        """The rank has ended, or this process is not one."""
        self._over.set()  # the other thread may be reading
        self._line.close()


def watch(settings: dict[str, Any], files: Outputs) -> RankRecorder:
    """Is called in each process of a launch once it has imported torch; those that join are ranks."""
    hooks.check()
    script = Script(settings, files)
    recorder = RankRecorder(script)
    recorder.listen()  # to a backward pass within that of `Updates`

    def joined(hello: Hello, line: Connection) -> None:
        recorder.rank = hello.rank
        reporter = RankReporter(recorder, hello, line)
        _tell_the_end(reporter)
        _show_stacks(os.path.join(settings["temporary"], f"stacks{hello.rank}"))
        sys.setswitchinterval(_SWITCH_S)
        threading.Thread(target=reporter.attend, name="perfkit", daemon=True).start()

    joining = Joining(script, [recorder.account, recorder], joined)
    parts = [Loaders(script), Models(script), Updates(script)]
    script.parts += [*parts, recorder.account, recorder.setting, joining, recorder]
    return recorder


def _tell_the_end(reporter: RankReporter) -> None:
    """Has a rank tell what it raises, or that it is over; a process that it forks is not a rank."""

    def crashed(show: Any, kind: type[BaseException], problem: BaseException, trace: Any) -> None:
        show(kind, problem, trace)
        reporter.end(explain(problem).what)

    hooks.around(sys, "excepthook", crashed)
    atexit.register(reporter.end)
    multiprocessing.util.Finalize(None, reporter.end, exitpriority=0)  # what is forked has no `atexit`
    os.register_at_fork(after_in_child=reporter.close)


def _show_stacks(path: str) -> None:
    """Where even the other threads stand still, Python itself writes the stacks at a signal."""
    if signal.getsignal(signal.SIGUSR2) == signal.SIG_DFL:
        faulthandler.register(signal.SIGUSR2, open(path, "w", encoding="utf-8"))  # noqa: SIM115 - kept open
