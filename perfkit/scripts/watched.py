"""A user's script that is asked at its steps: it is started as it stands, and ends cleanly."""

import collections
import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing import connection as connections
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

import perfkit
from perfkit import machine
from perfkit.errors import InvalidValue, RunFailed
from perfkit.process.child import end_tree
from perfkit.process.conversation import POLL_S, Conversation, OnProgress
from perfkit.recipe import Recipe, Value
from perfkit.scripts import entry
from perfkit.scripts.launch import Launch
from perfkit.scripts.messages import EDITS
from perfkit.scripts.scratch import QUIET, Mirror
from perfkit.worker import messages
from perfkit.worker.messages import AnyEvent, Failure, Question

A = TypeVar("A")
_ENDING_S = 3.0
"""How long the step may take in which the script is to end."""


class ScriptFailed(RunFailed):
    """The script failed, or cannot be watched; `output` is the end of what it wrote itself."""

    output: str = ""


class Hello(msgspec.Struct):
    """The first message of a process that trains."""

    rank: int
    world: int
    pid: int


class WatchedScript(Conversation):
    """A script that is watched, with all that it starts, in a process group of its own.

    Questions are methods of `server.Server`; they wait for the script's second step. All ranks answer.

    Args:
        launch: how it is started.
        toggles: switches that are set from outside: name → value.
        seed: of the random numbers of torch, Python and NumPy at its start; None leaves them alone.
        loaders: `[file, line, column]` of the calls that make the training loader, where that is known.
        environment: variables beside the user's own; None removes one.
        scratch: whether it works in a mirror of its folder, so that what it writes is thrown away, with
            experiment trackers switched off.
        losses: how many losses are kept.
        on_progress: called from the thread that asks, with the phase and its fraction.
        cancelled: set from any thread to end what is under way.
        deadline: `time.monotonic()` at which waiting ends; None for no limit.

    Raises:
        InvalidValue: there is no such script, this system cannot watch one, or a switch cannot be set.
    """

    def __init__(
        self,
        launch: Launch,
        toggles: Mapping[str, Value] | None = None,
        *,
        seed: int | None = None,
        loaders: Iterable[Iterable[Any]] = (),
        environment: Mapping[str, str | None] | None = None,
        scratch: bool = True,
        losses: int = 64,
        on_progress: OnProgress = lambda phase, fraction: None,
        cancelled: threading.Event | None = None,
        deadline: float | None = None,
    ) -> None:
        if not hasattr(socket, "AF_UNIX"):
            raise InvalidValue("scripts cannot be watched on this system", "Use Linux, macOS or WSL")
        toggles = dict(toggles or {})
        for name in EDITS.keys() & toggles.keys():
            what = f"{name} cannot be set from outside: it needs the script's own code"
            raise InvalidValue(what, f"To have it, {EDITS[name]}")
        super().__init__(on_progress, cancelled, deadline)
        self.launch = launch
        self.output: collections.deque[str] = collections.deque(maxlen=200)
        """The last lines that the script wrote to standard output."""
        self.log: collections.deque[str] = collections.deque(maxlen=200)
        """The last lines that the script wrote to standard error."""
        self.on_output: list[IO[str]] = []
        self.answers: list[Any] = []
        """The answer of each rank to the last question."""
        self.ranks: dict[int, Hello] = {}
        self._lines: dict[Connection, int] = {}
        self._sent: list[bytes] = []
        self._has_ended = False
        self._environment = {**(QUIET if scratch else {}), **_switched(toggles), **(environment or {})}
        self._settings: dict[str, Any] = {
            "toggles": toggles,
            "loaders": [list(place) for place in loaders],
            "seed": seed,
            "losses": losses,
            "launcher": launch.is_launcher,
            "package": str(Path(perfkit.__file__).parent),
            "scratch": "",
            "started": time.time(),
        }
        self._folder = tempfile.mkdtemp(prefix="perfkit-")
        self._server = socket.socket(socket.AF_UNIX)
        self.on_progress("importing torch", 0.0)
        try:
            self._process = self._start(scratch)
        except BaseException:
            self._server.close()
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        streams = [(self._process.stdout, self.output), (self._process.stderr, self.log)]
        self._readers = [threading.Thread(target=self._keep, args=each, daemon=True) for each in streams]
        for reader in self._readers:
            reader.start()

    # ------------------------------------------------------------ starting

    def _start(self, scratch: bool) -> subprocess.Popen[str]:
        words, folder = self.launch.command(), self.launch.where
        way_in = Path(self._folder) / "entry"
        way_in.mkdir()
        shutil.copy(entry.__file__, way_in / "sitecustomize.py")
        self._settings["socket"] = str(Path(self._folder) / "socket")
        try:
            self._server.bind(self._settings["socket"])
        except OSError:
            why = f"the folder for temporary files has too long a name: {tempfile.gettempdir()}"
            raise InvalidValue(why, "Set TMPDIR to a shorter one") from None
        self._server.listen(64)
        if scratch:
            words, folder = self._mirrored(words)
        return subprocess.Popen(
            words,
            text=True,
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=self._variables(way_in, folder),
            start_new_session=True,
        )

    def _mirrored(self, words: list[str]) -> tuple[list[str], Path]:
        """The command and the working directory in a mirror of the script's folders."""
        root = Path(self._folder) / "files"
        root.mkdir()
        mirror = Mirror(root)
        self._settings["scratch"] = str(root)
        folders = {self.launch.where.resolve()}
        if self.launch.script:
            folders.add(self.launch.script.resolve().parent)
        for folder in sorted(folders):
            mirror.add(folder)
        for path, data in self.launch.replaced:
            mirror.put(path, data)
        for folder in {*folders, self.launch.where}:
            there = str(mirror.place(folder))
            words = [_moved(word, str(folder), there) for word in words]
        return words, mirror.place(self.launch.where)

    def _variables(self, way_in: Path, folder: Path) -> dict[str, str]:
        """The user's environment and the way in; prints arrive at once."""
        values: dict[str, str | None] = {**os.environ}
        if self._settings["scratch"]:
            values.setdefault("TORCHINDUCTOR_CACHE_DIR", str(machine.cache_folder() / "inductor"))
            values |= {"TMPDIR": self._folder, "PWD": str(folder)}
        values |= self._environment
        paths = [str(way_in), *filter(None, [values.get("PYTHONPATH")])]
        values |= {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYTHONUNBUFFERED": "1",
            entry.VARIABLE: json.dumps(self._settings),
        }
        if self._settings["seed"] is not None:
            values.setdefault("PYTHONHASHSEED", "0")
        return {name: value for name, value in values.items() if value is not None}

    def _keep(self, stream: IO[str], lines: collections.deque[str]) -> None:
        mirrored = str(Path(self._folder, "files").resolve())  # before each path of the script's own folder
        for line in stream:
            shown = line.replace(mirrored, "")
            lines.append(shown.rstrip("\n"))
            for target in self.on_output:
                target.write(shown)

    # ------------------------------------------------------------ asking

    @property
    def pids(self) -> list[int]:
        """The leaders of its process groups, with ranks that a launcher put into others."""
        groups = {self._process.pid}
        for rank in self.ranks.values():
            with contextlib.suppress(ProcessLookupError):
                groups.add(os.getpgid(rank.pid))
        return sorted(groups)

    def send(self, question: Question) -> None:
        """Gives a question to every rank, also to those that connect later."""
        message = messages.encode(question)
        if len(self.ranks) < self.world or not self.ranks:
            self._sent.append(message)
        for line in self._lines:
            _tell(line, message)

    def events(self, wait_s: float) -> Iterator[tuple[int, AnyEvent | None]]:
        """What ranks have sent, waiting for at most some time; None once the script has ended."""
        ready = connections.wait([self._server, *self._lines], wait_s)
        if self._server in ready and (failure := self._accept()):
            yield 0, failure
        for line in [line for line in self._lines if line in ready]:
            try:
                yield self._lines[line], messages.decode_event(line.recv_bytes())
            except (EOFError, OSError, msgspec.DecodeError):
                del self._lines[line]
                line.close()
        if not ready and self._has_ended:
            yield 0, None
        self._has_ended = self._process.poll() is not None

    def _accept(self) -> Failure | None:
        """Takes the connection of a process that trains."""
        line = Connection(self._server.accept()[0].detach())
        try:
            hello = msgspec.msgpack.decode(line.recv_bytes(), type=Hello)
        except (EOFError, OSError, msgspec.DecodeError):
            line.close()
            return None
        if hello.rank in self.ranks:
            line.close()
            return Failure(
                "several",
                "the script trains in several processes that it started itself",
                "Start it with torchrun, one process for each rank, or let it train in one process",
            )
        self.ranks[hello.rank], self._lines[line], self.world = hello, hello.rank, hello.world
        for message in self._sent:
            _tell(line, message)
        return None

    def answer(self, kind: type[A]) -> A:
        """The answer to the question that was sent last; raises `ScriptFailed` where a script fails."""
        try:
            return super().answer(kind)
        except RunFailed as failure:
            error = ScriptFailed(failure.what, failure.remedy)
            error.kind = failure.kind
            self._readers[1].join(POLL_S)
            error.output = "\n".join(self.log)
            raise error from None

    def together(self, answers: list[Any]) -> Any:
        """The answer of rank 0, with the samples of all ranks."""
        self.answers = answers
        if isinstance(answers[0], dict) and "unavailable" in answers[0]:
            failure = RunFailed(answers[0]["unavailable"], "The script goes on")
            failure.kind = "unavailable"
            raise failure
        return _summed(answers)

    def too_late(self) -> RunFailed:
        """The failure of a script that takes too long."""
        if self.ranks:
            failure = RunFailed("the time limit is reached", "Raise --timeout, or ask for fewer --steps")
        else:
            what = f"the script has not made two training steps within its time limit{self._last_words()}"
            failure = RunFailed(what, "Raise --timeout; does it train at all with these arguments?")
        failure.kind = "too late"
        return failure

    def death(self, rank: int) -> RunFailed:
        """Why the script has ended."""
        code = self._process.wait()
        for reader in self._readers:
            reader.join(POLL_S)
        when = "while it was measured" if self.ranks else "before its second training step"
        if code < 0:
            what = f"the script was ended by signal {-code} {when}{self._last_words()}"
            return RunFailed(what, "Memory may have run out")
        how = f"with exit status {code} {when}{self._last_words()}"
        if self.ranks:
            return RunFailed(f"the script ended at once {how}", "Does it call os._exit? Leave that out")
        return RunFailed(f"the script ended {how}", "Run it by itself: does it train with these arguments?")

    def _last_words(self) -> str:
        lines = [*self.output, *self.log]
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" (the last it wrote: {last})" if last else ""

    # ------------------------------------------------------------ ending

    def stop(self) -> None:
        """Ends it at its next step if that comes soon, so that it is not interrupted while it writes."""
        for line in self._lines:
            _tell(line, messages.encode(Question("stop")))
        if self._lines:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING_S)
        end_tree(self._process.pid)
        self._process.wait()
        for line in self._lines:
            line.close()
        self._lines.clear()
        self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def wait(self) -> int:
        """Waits for the end of a script that was released; its exit status.

        Raises:
            Cancelled: the run was cancelled.
        """
        while True:
            self.check()
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(POLL_S)


def _tell(line: Connection, message: bytes) -> None:
    with contextlib.suppress(OSError):  # it has ended: `events` says so
        line.send_bytes(message)


def _moved(word: str, folder: str, there: str) -> str:
    """A word of the command line, with a path below the folder in the mirror."""
    option, equals, path = word.rpartition("=")
    if path == folder or path.startswith(folder + os.sep):
        return f"{option}{equals}{there}{path.removeprefix(folder)}"
    return word


def _switched(toggles: dict[str, Value]) -> dict[str, str | None]:
    """The variables of switches that act through the environment."""
    environment = getattr(Recipe().replace(**toggles), "environment", dict)
    return dict(environment())


def _summed(answers: list[Any]) -> Any:
    """The first answer, with the samples and tokens of all."""
    first = answers[0]
    if len(answers) == 1 or not isinstance(first, dict):
        return first
    if isinstance(first.get("step_s"), list):
        return {**first, "samples": sum(answer["samples"] for answer in answers)}
    counts = ("samples_per_step", "tokens", "tokens_per_step")
    blocks = ("first", "warm", "block")
    return {
        **first,
        **{name: _summed([answer[name] for answer in answers]) for name in blocks if name in first},
        **{name: sum(answer[name] for answer in answers) for name in counts if name in first},
    }
