"""A user's script as a child that is asked at its steps: it is started as it stands, and ends cleanly."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

import perfkit
from perfkit import machine
from perfkit.errors import InvalidValue, RunFailed
from perfkit.process.child import end_tree
from perfkit.process.conversation import POLL_S, Conversation
from perfkit.process.conversation import OnProgress as Progress
from perfkit.scripts import entry
from perfkit.scripts.edits import EDITS
from perfkit.scripts.launch import Launch
from perfkit.scripts.scratch import QUIET, mirror, put
from perfkit.worker import messages
from perfkit.worker.messages import AnyEvent, Question

_ENDING_S = 3.0
"""How long a step may take in which the script is to end."""


class ScriptFailed(RunFailed):
    """The script failed, or cannot be watched; `output` is the end of what it wrote itself."""

    output: str = ""


class _Rank:
    """The connection of one process that trains."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lines = connection.makefile("r", encoding="utf-8", errors="replace")
        hello = json.loads(self._lines.readline())
        self.rank, self.world, self.pid = int(hello["rank"]), int(hello["world"]), int(hello["pid"])

    def send(self, line: str) -> None:
        """One command; a rank that has gone is noticed when its answer is waited for."""
        with contextlib.suppress(OSError):
            self._connection.sendall(line.encode())

    def events(self) -> Iterable[messages.AnyEvent]:
        """What it sends, until it has gone."""
        with contextlib.suppress(OSError):
            for line in self._lines:
                with contextlib.suppress(ValueError):
                    yield msgspec.convert(json.loads(line), AnyEvent)


class WatchedScript(Conversation):
    """A script that is watched, with all that it starts, in a process group of its own.

    It is asked as any other child; the questions are in `commands`, and wait for its second step. With
    several ranks all are asked, and the first answers, with the samples of all; `answers` has each one's.

    Args:
        launch: how it is started.
        toggles: switches that are set from outside: name -> value.
        seed: of the random numbers of torch, Python and NumPy at its start; None leaves them alone.
        loaders: `[file, line, column]` of the calls that make the training loader, where that is known.
        environment: variables beside its own; None removes one.
        scratch: whether it works in a mirror of its folder, so that what it writes is thrown away, with
            experiment trackers switched off.
        losses: how many losses are kept.
        dropout_off: whether the model trains without dropout, for a check of parity.
        on_progress: called from the thread that asks, with the phase and its fraction.
        cancelled: set from any thread to end what is under way.
        deadline: `time.monotonic()` at which waiting ends; None for no limit.

    Raises:
        InvalidValue: there is no such script, this system cannot watch one, or a switch cannot be set.
    """

    def __init__(
        self, launch: Launch, toggles: Mapping[str, Any] | None = None, *, seed: int | None = None,
        loaders: Iterable[Iterable[Any]] = (), environment: Mapping[str, str | None] | None = None,
        scratch: bool = True, losses: int = 64, dropout_off: bool = False,
        on_progress: Progress = lambda phase, fraction: None, cancelled: threading.Event | None = None,
        deadline: float | None = None,
    ) -> None:  # fmt: skip
        if not hasattr(socket, "AF_UNIX"):
            raise InvalidValue("scripts cannot be watched on this system", "Use Linux, macOS or WSL")
        for name in toggles or {}:
            if name in EDITS:
                what = f"{name} cannot be set from outside: it needs the script's own code"
                raise InvalidValue(what, f"To have it, {EDITS[name]}")
        self.launch, self._words = launch, launch.command()
        self._changes = {**(QUIET if scratch else {}), **(environment or {})}
        self._scratch = scratch
        self._settings = {
            "toggles": dict(toggles or {}), "loaders": [list(place) for place in loaders], "seed": seed,
            "losses": losses, "dropout_off": dropout_off, "launcher": launch.is_launcher,
            "package": str(Path(perfkit.__file__).parent), "scratch": "",
        }  # fmt: skip
        self.output: collections.deque[str] = collections.deque(maxlen=200)
        """The last lines that the script wrote to standard output; `log` has those of standard error."""
        self.on_output: list[IO[str]] = []
        self.answers: list[Any] = []
        """Each rank's answer to the last command."""
        self._ranks: dict[int, _Rank] = {}
        self._unsent: list[str] = []
        self._inbox: dict[int, Any] = {}
        self._lock = threading.Lock()
        super().__init__(on_progress, cancelled, deadline)
        self.log: collections.deque[str] = collections.deque(maxlen=200)
        self._events: queue.Queue[AnyEvent | None] = queue.Queue()
        self._started = time.time()
        # Removed with whatever a killed child leaves there.
        self._folder = tempfile.mkdtemp(prefix="perfkit-")
        on_progress("starting", 0.0)
        try:
            self._process = self._start()
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        threading.Thread(target=self._read_events, daemon=True).start()
        self._log_reader = threading.Thread(target=self._read_log, daemon=True)
        self._log_reader.start()

    # ------------------------------------------------------------ starting

    def _start(self) -> subprocess.Popen[str]:
        entry_folder = Path(self._folder) / "entry"
        entry_folder.mkdir()
        shutil.copy(entry.__file__, entry_folder / "sitecustomize.py")
        self._server = socket.socket(socket.AF_UNIX)
        path = str(Path(self._folder) / "socket")
        try:
            self._server.bind(path)
        except OSError:
            why = f"the folder for temporary files has too long a name: {tempfile.gettempdir()}"
            raise InvalidValue(why, "Set TMPDIR to a shorter one") from None
        self._server.listen(64)
        root, folder = Path(self._folder) / "files", self.launch.where
        if self._scratch:
            root.mkdir()
            folder = mirror(root, folder)
            self._settings["scratch"] = str(root)
            places = {str(real): str(put(root, real, data)) for real, data in self.launch.replaced}
            self._words = [places.get(word, word) for word in self._words]
            cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or str(machine.cache_folder() / "inductor")
            self._changes = {
                "TMPDIR": self._folder, "PWD": str(folder), "TORCHINDUCTOR_CACHE_DIR": cache, **self._changes,
            }  # fmt: skip
        process = subprocess.Popen(
            self._words, text=True, encoding="utf-8", errors="replace", bufsize=1,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=folder, env=self._environment(entry_folder, path), start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._accept, daemon=True).start()
        return process

    def _environment(self, entry_folder: Path, path: str) -> dict[str, str]:
        """The user's own, and the way in; prints arrive at once."""
        values: dict[str, str | None] = {**os.environ, **self._changes}
        paths = [str(entry_folder), *filter(None, [values.get("PYTHONPATH")])]
        values |= {
            "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1",
            entry.VARIABLE: json.dumps({**self._settings, "socket": path}),
        }  # fmt: skip
        if self._settings["seed"] is not None:
            values.setdefault("PYTHONHASHSEED", "0")
        return {name: value for name, value in values.items() if value is not None}

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            rank = _Rank(connection)
        except (OSError, ValueError, KeyError):
            return
        with self._lock:
            if rank.rank in self._ranks:
                self._events.put(messages.Failure(
                    "several", "the script trains in several processes that it started itself",
                    "Start it with torchrun, one process for each rank, or let it train in one process",
                ))  # fmt: skip
                return
            self._ranks[rank.rank] = rank
            for line in self._unsent:
                rank.send(line)
        for event in rank.events():
            self._received(rank, event)

    def _received(self, rank: _Rank, event: messages.AnyEvent) -> None:
        """Answers are collected until every rank has given its own; of progress, the first rank's counts."""
        with self._lock:
            if isinstance(event, messages.Answer):
                self._inbox[rank.rank] = event.value
                if len(self._inbox) < rank.world:
                    return
                values = [self._inbox[number] for number in sorted(self._inbox)]
                self._inbox, self.answers = {}, values
                self._events.put(messages.Answer(_together(values)))
            elif rank.rank == 0 or not isinstance(event, messages.Progress):
                self._events.put(event)

    def _read_events(self) -> None:
        """Standard output is the script's own; that it ends says that the process has."""
        self._keep(self._process.stdout, self.output)
        self._process.wait()
        time.sleep(POLL_S)  # what it sent last is still being read
        self._events.put(None)

    def _read_log(self) -> None:
        self._keep(self._process.stderr, self.log)

    def _keep(self, stream: IO[str] | None, lines: collections.deque[str]) -> None:
        assert stream is not None
        mirrored = str(Path(self._folder) / "files")  # before each path of the script's own folder
        for line in stream:
            line = line.replace(mirrored, "")  # noqa: PLW2901
            lines.append(line.rstrip("\n"))
            for target in self.on_output:
                target.write(line)

    # ------------------------------------------------------------ asking

    def send(self, question: Question) -> None:
        """Gives one question to every rank, also to those that connect later."""
        arguments = dict(question.arguments)
        if question.name == "train":
            arguments["started"] = self._started
        line = json.dumps({"name": question.name, "arguments": arguments}) + "\n"
        with self._lock:
            world = next((rank.world for rank in self._ranks.values()), 2)
            if len(self._ranks) < world:
                self._unsent.append(line)
            for rank in self._ranks.values():
                rank.send(line)

    def events(self, wait_s: float) -> Iterator[tuple[int, AnyEvent | None]]:
        """What the ranks have said together, as the first one."""
        with contextlib.suppress(queue.Empty):
            event = self._events.get(timeout=wait_s)
            if event is None:
                self._events.put(None)  # for whoever asks next
            yield 0, event

    def answer(self, kind: type[Any]) -> Any:
        """The answer to the question that was sent last."""
        try:
            return super().answer(kind)
        except RunFailed as failure:
            error = ScriptFailed(failure.what, failure.remedy)
            error.kind = failure.kind
            self._log_reader.join(POLL_S)
            error.output = "\n".join(self.log)
            raise error from None

    @property
    def pid(self) -> int:
        """The process that was started."""
        return self._process.pid

    @property
    def pids(self) -> list[int]:
        """The leaders of its process groups; ranks that a launcher put into others included."""
        groups = {self.pid}
        for rank in self._ranks.values():
            with contextlib.suppress(ProcessLookupError):
                groups.add(os.getpgid(rank.pid))
        return sorted(groups)

    @property
    def ranks(self) -> int:
        """How many processes train."""
        return max(1, len(self._ranks))

    def too_late(self) -> RunFailed:
        if self._ranks:
            return super().too_late()
        what = f"the script has not made two training steps within its time limit{self._last_words()}"
        return RunFailed(what, "Raise --timeout; does it train at all with these arguments?")

    def _last_words(self) -> str:
        lines = [*self.output, *self.log]
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f" (the last it wrote: {last})" if last else ""

    def death(self, rank: int) -> RunFailed:
        """Why the script has ended."""
        code = self._process.wait()
        self._log_reader.join(POLL_S)
        steps = "before its second training step" if not self._ranks else "while it was measured"
        said = self._last_words()
        if code < 0:
            return RunFailed(
                f"the script was ended by signal {-code} {steps}{said}", "Memory may have run out"
            )
        how = f"with exit status {code} {steps}{said}"
        if self._ranks:
            return RunFailed(f"the script ended at once {how}: os._exit, most likely", "Do not call it there")
        return RunFailed(f"the script ended {how}", "Run it by itself: does it train with these arguments?")

    # ------------------------------------------------------------ ending

    def stop(self) -> None:
        """Ends it at its next step if that comes soon, so that it is not interrupted while it writes."""
        with self._lock:
            for rank in self._ranks.values():
                rank.send('{"name": "stop"}\n')
        if self._ranks:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ENDING_S)
        self._server.close()
        end_tree(self.pid)
        self._process.wait()
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


def _together(values: list[Any]) -> Any:
    """The answer of all ranks: the first rank's, with everybody's samples."""
    first = values[0]
    if len(values) == 1 or not isinstance(first, dict):
        return first
    if isinstance(first.get("step_s"), list):
        return {**first, "samples": sum(value["samples"] for value in values)}
    parts = {
        name: _together([value[name] for value in values])
        for name in ("first", "warm", "block")
        if name in first
    }
    counts = {
        name: sum(value[name] for value in values)
        for name in ("samples_per_step", "tokens", "tokens_per_step") if name in first
    }  # fmt: skip
    return {**first, **parts, **counts}
