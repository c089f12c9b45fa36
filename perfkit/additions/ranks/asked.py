"""The ranks of a launch as one side of a comparison, which is as slow as the slowest of them."""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from msgspec import structs

from perfkit.additions.ranks import guardian
from perfkit.additions.ranks.messages import Hello, Told
from perfkit.additions.ranks.switches import THREADS, in_words, of_script
from perfkit.additions.referee.behaviour import BEHAVIOUR, Behaviour
from perfkit.additions.scripts.watched import Launch, WatchedScript
from perfkit.errors import InvalidValue, RunFailed, TrainingEnded
from perfkit.process import Question
from perfkit.process.child import POLL_S
from perfkit.process.locks import check_cancelled
from perfkit.recipe import Recipe, Value
from perfkit.results.schema import Mechanism
from perfkit.show import units
from perfkit.worker.messages import Trained

START_S = 180.0  # seconds until all ranks have joined
LOST_RANK = re.compile(r"(?i)gloo|NCCL|c10d|Connection (closed|reset)|DistBackend|ProcessGroup|TCPStore")
"""How a rank fails because it lost another one."""
_LONGEST = 80  # bytes of a folder's path, so that the socket in it has a name that every system takes
_WORD_S = 2.0  # seconds in which whoever comes says who it is
_OWN_END_S = 0.5  # seconds in which a launch ends by itself
_ANSWER_S = 10.0
_COLLECT_S = 1.5  # seconds for the failure of the rank that another one has lost
_WATCHER = "perfkit.additions.ranks.questions:RankQuestions"


@dataclass(frozen=True)
class RankedLaunch(Launch):
    """A command line that starts ranks, such as `torchrun --nproc-per-node 2 train.py`.

    `program` is its name: its script, or what is set. `settings`: switches that are set on all ranks.
    """

    command: tuple[str, ...] = ()
    settings: tuple[tuple[str, Value], ...] = ()

    def __post_init__(self) -> None:
        if os.name == "nt":
            raise InvalidValue("scripts cannot be watched on this system", "Use Linux, macOS or WSL")
        if _found(self.command[0]) is None:
            what = f"there is no program {self.command[0]} on the path"
            raise InvalidValue(what, "Write the command as you start it, such as torchrun … train.py")

    @property
    def script(self) -> Path | None:
        """The first argument that is a file of Python."""
        script = _script_in(self.command)
        return Path(script).absolute() if script else None

    @property
    def words(self) -> list[str]:
        return [_found(self.command[0]) or self.command[0], *self.command[1:]]

    @property
    def as_one_process(self) -> str:
        """The command that watches a script which python starts; empty for a launcher of ranks."""
        script = _script_in(self.command)
        is_python = Path(self.command[0]).name.startswith("python")
        return f"perfkit watch {script}" if is_python and script else ""

    def describe(self) -> str:
        more = f" with {in_words(dict(self.settings))}" if self.settings else ""
        return " ".join(self.command) + more


def _found(program: str) -> str | None:
    """The program that is meant: that of the environment in which perfkit itself runs, if it has one."""
    return shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)


def _script_in(command: Sequence[str]) -> str | None:
    return next((word for word in command[1:] if word.endswith(".py") and Path(word).is_file()), None)


def launch_of(command: Sequence[str], settings: Mapping[str, Value] | None = None) -> RankedLaunch:
    """The launch of a command, as it is or with switches that are set from outside."""
    title = in_words(settings or {}) or _script_in(command) or command[0]
    return RankedLaunch(title, command=tuple(command), settings=tuple((settings or {}).items()))


def launch_with(command: Sequence[str], script: str, named: str) -> RankedLaunch:
    """A command that starts a script: where it names the other one (`named`), or else at its end."""
    if named not in command:
        return launch_of([*command, script])
    return launch_of([script if word == named else word for word in command])


class Launched(WatchedScript):
    """The tree of processes that a command starts; its ranks come to a socket in a private folder."""

    launch: RankedLaunch

    def _open(self, settings: dict[str, Any], watcher: str) -> subprocess.Popen[bytes]:
        self._joined = list[Connection]()
        self._meeting = _meeting_folder()
        self._socket = socket.socket(socket.AF_UNIX)
        address = str(Path(self._meeting.name) / "ranks")
        self._socket.bind(address)
        self._socket.listen()
        own = dict(self.launch.settings)
        settings["toggles"] |= of_script(own)
        settings["variables"] |= Recipe().replace(**of_script(own)).environment()
        if THREADS in own:
            settings["variables"]["OMP_NUM_THREADS"] = str(own[THREADS])
        more = {"watcher": watcher, "address": address, "ranked": own, "everywhere": True}
        command = [sys.executable, "-P", guardian.__file__, str(self.folder), self._meeting.name]
        self._guardian = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        return self._start(settings | more)

    def _let_in(self) -> None:
        """Meets whoever has come to the socket, if it is a rank of ours."""
        line = Connection(self._socket.accept()[0].detach())
        self._joined.append(line)
        with contextlib.suppress(EOFError, OSError, msgspec.DecodeError):
            if line.poll(_WORD_S):
                self._meet(msgspec.json.decode(line.recv_bytes(), type=Hello), line)

    def _meet(self, hello: Hello, line: Connection) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        """Ends the whole tree, whoever started what in it; ranks end as soon as nobody listens to them."""
        for line in self._joined:
            line.close()
        self._socket.close()
        self.resume()
        self.tree.await_end(_OWN_END_S)
        self.tree.end()
        self._process.wait()
        self._guardian.communicate()  # whose input ends, so that it ends whatever was not found
        self._files.cleanup()
        self._meeting.cleanup()


def _meeting_folder() -> tempfile.TemporaryDirectory[str]:
    """A private folder for the socket of ranks, whose path may not be long."""
    usual = tempfile.gettempdir()
    folder = usual if len(os.fsencode(usual)) <= _LONGEST else "/tmp"
    try:
        return tempfile.TemporaryDirectory(prefix="perfkit-", dir=folder, ignore_cleanup_errors=True)
    except OSError as problem:
        what = f"ranks cannot meet: {usual} is too long for the path of a socket, and {folder} cannot be used"
        raise InvalidValue(what, "Set TMPDIR to a folder with a shorter path") from problem


class AskedRanks(Launched):
    """Rank 0 is asked as a script in one process is; the others wait for it where they meet in a step.

    What is known of a side is that of all its ranks: they tell it while they train, and are never stopped.
    """

    def _begin(self, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
        self._others: dict[int, Connection] = {}
        self._world = 0
        self._has_first = False
        self._times_as_many = 1.0  # samples of all ranks, by those of rank 0
        with socket.create_server(("127.0.0.1", 0)) as free:  # both sides of a comparison are there at a time
            settings["variables"]["PET_MASTER_PORT"] = str(free.getsockname()[1])
        return self._open(settings, _WATCHER)

    def ask(self, question: str, **arguments: Any) -> Any:
        """What rank 0 answers, with what the others have to add."""
        self._await_ranks()
        answer = super().ask(question, **arguments)
        if question == "train":
            return self._trained(answer)
        if question == "slice":
            return structs.replace(answer, samples=round(answer.samples * self._times_as_many))
        return of_all([answer, *self._others_say(BEHAVIOUR)]) if question == BEHAVIOUR else answer

    def _trained(self, first: Trained) -> Trained:
        told: list[Told] = self._others_say("told")
        samples = first.samples_per_step + sum(each.samples_per_step for each in told)
        self._times_as_many = samples / max(1, first.samples_per_step)
        losses = zip(first.losses, *(each.losses for each in told), strict=False)
        proofs = proofs_of_all([first.mechanisms, *(each.mechanisms for each in told)])
        return structs.replace(first, losses=[fmean(each) for each in losses], mechanisms=proofs)

    def _others_say(self, question: str) -> list[Any]:
        for line in self._others.values():
            with contextlib.suppress(OSError):  # it has ended: its answer is missing
                line.send(Question(0, question, {}))
        told = []
        for rank, line in sorted(self._others.items()):
            said = _said(line, _ANSWER_S)
            if said is None:
                said = RunFailed(f"rank {rank} does not answer", "Run the command without perfkit to compare")
            if isinstance(said, RunFailed):
                raise self._of_rank(rank, said)
            told.append(said)
        return told

    def _await_ranks(self) -> None:
        until = time.monotonic() + START_S
        while not self._has_first or len(self._others) + 1 < self._world:
            check_cancelled(self.cancelled)
            if self._process.poll() is not None:
                code = self._process.returncode
                raise self.explained(RunFailed(f"it ended with exit code {code} before all ranks had joined"))
            if time.monotonic() > until:
                what = f"{self.launch.describe()}: its ranks have not joined in {START_S:.0f} s"
                raise RunFailed(what, "Does each call torch.distributed.init_process_group?")
            if connections.wait([self._socket], POLL_S):
                self._let_in()

    def _meet(self, hello: Hello, line: Connection) -> None:
        if hello.local < hello.world:
            what = f"{hello.local} of {hello.world} ranks run on this machine"
            raise RunFailed(what, "Compare on one machine: no node can suspend the ranks of another")
        self._world = hello.world
        if hello.rank:
            self._others[hello.rank] = line
        else:
            self.line = line
            self._has_first = True

    def death(self) -> RunFailed | None:
        if connections.wait([self._socket], 0):  # all ranks have joined: these are new ones
            what = "it lost a rank, and its agent starts all ranks again"
            return RunFailed(what, "Compare launches without --max-restarts")
        return super().death()

    def _trains_elsewhere(self) -> None:
        """It is known where."""

    def explained(self, failure: RunFailed) -> RunFailed:
        """A rank that loses another one fails too: the first failure is that of the other."""
        if isinstance(failure, TrainingEnded):
            return super().explained(failure)
        rank = 0
        is_lost = bool(LOST_RANK.search(failure.what))
        for other, line in self._others.items():
            said = _said(line, _COLLECT_S if is_lost else 0.0)
            if isinstance(said, RunFailed):
                rank = other
                failure = said
                is_lost = False
        return self._of_rank(rank, failure)

    def _of_rank(self, rank: int, failure: RunFailed) -> RunFailed:
        failure.what = f"{self.launch.program} failed on rank {rank} of {self._world}: {failure.what}"
        return super().explained(failure)


def _said(line: Connection, seconds: float) -> Any:
    """What a rank has sent; None if it is silent for so long, or has ended."""
    with contextlib.suppress(EOFError, OSError):
        if line.poll(seconds):
            return line.recv()
    return None


def proofs_of_all(told: Sequence[Sequence[Mechanism]]) -> list[Mechanism]:
    """A switch must be in effect on every rank; else the evidence is that of one where it is not."""
    proofs = []
    for of_ranks in zip(*told, strict=True):
        wrong = [rank for rank, proof in enumerate(of_ranks) if not proof.ok]
        where = f"rank {wrong[0]}" if wrong else f"on all {units.plural(len(told), 'rank')}"
        text = f"{where}: {of_ranks[wrong[0] if wrong else 0].evidence}"
        proofs.append(structs.replace(of_ranks[0], ok=not wrong, evidence=text))
    return proofs


def of_all(told: Sequence[Behaviour]) -> Behaviour:
    """What the steps of all ranks did together; the time between steps is that of the rank with most."""
    busiest = max(told, key=lambda each: each.marked)
    count = min(len(each.loaded) for each in told)
    summed: dict[str, Any] = {
        name: [sum(values) for values in zip(*(getattr(each, name)[:count] for each in told), strict=True)]
        for name in ("loaded", "trained", "values")
    }
    own = {name: getattr(busiest, name)[:count] for name in ("backwards", "weight", "reached")}
    merged = {
        name: sorted({value for each in told for value in getattr(each, name)})
        for name in ("evaluations", "checkpoints", "replaced")
    }
    batches = zip(*(each.batches[:count] for each in told), strict=True)
    losses = zip(*(each.losses for each in told), strict=False)
    means = [fmean(values) for values in losses]
    order = [float(hash(values)) for values in batches]
    return structs.replace(busiest, **summed, **own, **merged, batches=order, losses=means)
