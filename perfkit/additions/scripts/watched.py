"""A user's script in a process that answers questions: started as the user would, ended cleanly."""

import contextlib
import difflib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, ClassVar, Self

import psutil

import perfkit
from perfkit import lookup, machine
from perfkit.additions.guard import landlock, outputs
from perfkit.additions.scripts import entry
from perfkit.additions.scripts.messages import TEXTS, ScriptFacts, failed
from perfkit.additions.shared.settings import Settings
from perfkit.errors import InvalidValue, RunFailed, one_of
from perfkit.process.child import OnProgress, last_lines, share_headers
from perfkit.process.failures import explain_exit, is_users
from perfkit.process.tree import GRACE_S, Tree
from perfkit.recipe import Recipe, Value
from perfkit.show import units
from perfkit.studies.conversation import TrainingConversation
from perfkit.worker.messages import TimedSteps

_TABLES = lookup.toml(__package__, "watched")
_LISTED = 12  # scripts that are named where one is not found: a folder may have thousands
_ELSEWHERE_S = 15.0  # seconds without a step after which busy processes are looked for
_BUSY = 0.2  # the part of a core that a busy process uses at least
_DENIED = re.compile(r"Permission denied|(errno|os error) 13|Invalid cross-device link", re.IGNORECASE)


@dataclass(frozen=True)
class Launch:
    """A command that trains, in the current folder: `python program …`, or `python -m program …`."""

    program: str
    arguments: Sequence[str] = ()
    module: bool = False
    replaced: tuple[tuple[Path, bytes], ...] = ()  # absolute paths with other content, as if patched

    def __post_init__(self) -> None:
        """Raises `InvalidValue` if there is no such program, or on Windows."""
        if os.name == "nt":
            raise InvalidValue("scripts cannot be watched on this system", "Use Linux, macOS or WSL")
        if self.script is None and not self.module:
            if Path(self.program).is_dir():
                raise InvalidValue(f"'{self.program}' is a folder", "Name the script in it")
            folder = Path(self.program).parent
            names = sorted(path.name for path in folder.glob("*.py") if path.is_file())
            nearest = difflib.get_close_matches(self.name, names, _LISTED, cutoff=0.0)
            where = f"{', …' if len(names) > _LISTED else ''} in {folder.absolute()}, or a module with -m"
            raise one_of(self.name, nearest, "script", where)

    @property
    def script(self) -> Path | None:
        path = Path(self.program).absolute()
        return path if not self.module and path.is_file() else None

    def frozen(self) -> Self:
        """The launch with its script or module as it is now, whatever is saved in the file later."""
        file = machine.module_file(self.program, "__main__.py") if self.module else self.script
        if file is None or (self.module and not is_users(str(file))):  # modules of libraries are not copied
            return self
        contents = {file.resolve(): file.read_bytes()}
        return replace(self, replaced=tuple((contents | dict(self.replaced)).items()))

    @property
    def code(self) -> str:
        """The digest of the files that it is frozen with."""
        return hashlib.sha256(b"".join(content for _, content in self.replaced)).hexdigest()

    @property
    def name(self) -> str:
        return Path(self.program).name

    @property
    def words(self) -> list[str]:
        """The whole command."""
        words = [self.program, *self.arguments]
        return [sys.executable, "-m", *words] if self.module else [sys.executable, *words]

    def describe(self) -> str:
        return shlex.join(["python", *self.words[1:]])


def own_or_shipped(script: str, arguments: Sequence[object] = (), module: bool = False) -> Launch:
    """A launch of a user's script, or if there is none of this name, of one in `data/scripts`."""
    shipped = machine.shipped(script.removeprefix("data/"))
    program = str(shipped) if shipped.is_file() and not Path(script).exists() else script
    return Launch(program, tuple(map(str, arguments)), module)


class TrainsAlone(RunFailed):
    """A command for several ranks has started one process, which trains as `launch` does."""

    def __init__(self, what: str, remedy: str, launch: Launch) -> None:
        super().__init__(what, remedy)
        self.launch = launch


class TrainsElsewhere(RunFailed):
    """A script waits while other processes, which it started, train."""


@dataclass(eq=False, repr=False)
class WatchedScript(TrainingConversation):
    """A script that is watched, in its own process group, with the processes that it starts.

    It works in a mirror of its folder, so its files are thrown away; experiment trackers are off.
    Questions are methods of `questions.Questions`; they wait for the script's second step.
    """

    watcher: ClassVar[str] = "perfkit.additions.scripts.questions:listen"  # see `Settings`
    launch: Launch
    toggles: Mapping[str, Value] = field(default_factory=dict)  # switches that are set from outside
    _: KW_ONLY
    seed: int = 0  # of torch, Python and NumPy
    facts: ScriptFacts | None = None  # from another process of the script
    observers: Sequence[str] = ()  # further observers to make in its process, as `module:name`
    on_progress: OnProgress = lambda phase: None
    cancelled: threading.Event | None = None
    _process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        super().__init__(self.on_progress, self.cancelled)
        self._files = tempfile.TemporaryDirectory(prefix="perfkit-", ignore_cleanup_errors=True)
        self.folder = Path(self._files.name)  # of this process alone; it contains the mirror
        self._mirror = os.path.realpath(self.folder / "files")
        self.variables = Recipe().replace(**self.toggles).environment()  # of its environment
        self.is_training = False  # whether it has answered a question, so it has taken steps
        self.before_slice: Callable[[int, float], int] | None = None  # returns the samples of a slice
        self.after_slice: Callable[[TimedSteps], None] | None = None
        self._cpu_s: dict[int, float] = {}
        self._look_again_at = time.monotonic()

    def start(self) -> Self:
        """Starts the script, which is ended by `stop`."""
        sites = self.facts.sites if self.facts else []
        loaders = [site.frames[0] for site in sites if site.frames and site.role == "loader"]
        settings = Settings(
            package=perfkit.__file__,
            scratch=self._mirror,
            more=str(machine.data_folder() / "runs" / "profiles"),
            is_guarded=landlock.is_there(),
            watcher=self.watcher,
            program=self.launch.program,
            started=time.time(),
            seed=self.seed,
            toggles=dict(self.toggles),
            samples=self.facts.samples_per_step if self.facts else 1,
            loaders=[(frame.file, frame.line, frame.column) for frame in loaders],
            observers=list(self.observers),
        )
        self.on_progress("waiting for its second step")
        self._process = self._begin(settings)
        self.tree = Tree(self._process.pid)
        return self

    def _begin(self, settings: Settings) -> subprocess.Popen[bytes]:
        """Makes the process, with a line to it."""
        self.line, far_end = Pipe()
        with far_end:
            return self._spawn(replace(settings, line=far_end.fileno()))

    def ask(self, question: str, **arguments: Any) -> Any:
        answer = super().ask(question, **arguments)
        self.is_training = True
        return answer

    def slice(self, samples: int, seconds: float) -> TimedSteps:
        if self.before_slice:
            samples = self.before_slice(samples, seconds)
            seconds = 0.0
        timed = super().slice(samples, seconds)
        if self.after_slice:
            self.after_slice(timed)
        return timed

    def _spawn(self, settings: Settings) -> subprocess.Popen[bytes]:
        arguments, folder = self._mirrored()
        entry_folder = self.folder / "entry"
        entry_folder.mkdir()
        shutil.copy(entry.__file__, entry_folder / "sitecustomize.py")
        paths = [str(entry_folder), os.environ.get("PYTHONPATH", "")]
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": str(machine.data_folder() / "cache" / "inductor"),
            "PYTHONHASHSEED": "0",
            **os.environ,
            **_TABLES["quiet"],
            **self.variables,
            "TMPDIR": str(self.folder),
            "PWD": folder,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "PYTHONUNBUFFERED": "1",
            entry.VARIABLE: settings.to_json(),
        }
        share_headers(environment)
        out, err = self.folder / "out", self.folder / "err"
        # Each script reads a file to which standard input is redirected from its beginning.
        source = "/dev/stdin" if os.path.isfile("/dev/stdin") else os.devnull
        with open(source, "rb") as input_, out.open("wb") as output, err.open("wb") as errors:
            fds = [settings.line] if settings.line >= 0 else []
            options: Any = {"cwd": folder, "env": environment, "pass_fds": fds, "start_new_session": True}
            return subprocess.Popen(arguments, stdin=input_, stdout=output, stderr=errors, **options)

    def _mirrored(self) -> tuple[list[str], str]:
        current = Path.cwd()
        script = self.launch.script
        folders = [current]
        files = dict(self.launch.frozen().replaced)
        if script:
            folders += script.parent, script.resolve().parent
        places = {str(path): self._place(path) for folder in folders for path in (folder, folder.resolve())}
        for place in places.values():
            outputs.unfold(self._mirror, place)
            outputs.fill(self._mirror, place)
        for path, data in files.items():
            copy = Path(self._place(path))
            outputs.unfold(self._mirror, str(copy.parent))
            copy.unlink(missing_ok=True)
            copy.write_bytes(data)
        for place in places.values():
            self._lead_to_copies(place, files)
        # A path begins an argument, or follows an `=`.
        pattern = re.compile(f"(?<![^=])({'|'.join(map(re.escape, places))})(?=/|$)")
        arguments = [pattern.sub(lambda match: places[match[0]], word) for word in self.launch.words]
        return arguments, places[str(current)]

    def _lead_to_copies(self, place: str, files: Collection[Path]) -> None:
        """Redirects links to these files to their copies, next to which Python looks for modules."""
        for name in os.listdir(place):
            link = Path(place, name)
            is_code = name.endswith(".py") or name == self.launch.name
            if is_code and link.is_symlink() and link.resolve() in files:
                copy = self._place(link)
                link.unlink()
                link.symlink_to(copy)

    def _place(self, path: Path) -> str:
        return self._mirror + str(path.resolve())

    def written(self, stream: str) -> list[str]:
        return last_lines(self.folder / stream).replace(self._mirror, "").splitlines()

    def death(self) -> RunFailed | None:
        code = self._process.poll()
        if code is None:
            return self._trains_elsewhere()
        lines = [line.strip() for line in self.written("out") + self.written("err") if line.strip()]
        failure = explain_exit(code, lines[-1] if lines else "", self.launch.program)
        if code >= 0:
            failure.remedy = "Does it import torch, train with these arguments, and call no os._exit?"
        return failure

    def _trains_elsewhere(self) -> RunFailed | None:
        """A failure if the script, which has taken no step, waits for busy processes that it started."""
        if self.is_training or time.monotonic() < self._look_again_at:
            return None
        self._look_again_at = time.monotonic() + _ELSEWHERE_S
        before_s, self._cpu_s = self._cpu_s, _cpu_seconds(self.tree)
        least_s = _BUSY * _ELSEWHERE_S
        busy = {pid for pid, cpu_s in self._cpu_s.items() if cpu_s - before_s.get(pid, 0.0) > least_s}
        if not before_s or not busy or self._process.pid in busy:
            return None
        busy_count = units.plural(len(busy), "busy process", "busy processes")
        facts = {"program": self.launch.program, "command": self.launch.describe(), "busy": busy_count}
        return failed("elsewhere", TrainsElsewhere, seconds=_ELSEWHERE_S, **facts)

    def explained(self, failure: RunFailed) -> RunFailed:
        failure.output = "\n".join(self.written("err")[-200:]).rstrip()
        return with_remedy_of_denial(failure)

    def stop(self) -> None:
        """Ends the script, at its next step if that comes soon: in between, it may be writing a file."""
        self.line.close()
        self.resume()
        self.tree.await_end(GRACE_S)
        self.tree.end()
        self._process.wait()
        self._files.cleanup()


def with_remedy_of_denial(failure: RunFailed) -> RunFailed:
    """A failure with the remedy of a write that the kernel has denied: only Python's own errors say why."""
    if _DENIED.search(failure.output) and "PermissionError" not in failure.what:
        failure.remedy = TEXTS["remedies"]["move_away"]
    return failure


def _cpu_seconds(tree: Tree) -> dict[int, float]:
    """CPU seconds by process: of a script and the Pythons that it started, but not of its forks."""
    seconds = dict[int, float]()
    script_words = list[str]()
    for process in tree.processes():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            times = process.cpu_times()
            script_words = script_words or words  # parents come first
            is_helper = any(name in word for word in words for name in _TABLES["helpers"])
            is_python = bool(words) and "python" in words[0] and words != script_words and not is_helper
            if is_python or process == tree.root:
                seconds[process.pid] = times.user + times.system
    return seconds
