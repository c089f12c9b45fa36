"""The command line of a launch that starts several ranks, as it was written."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfkit.additions.ranks import LAUNCHERS
from perfkit.additions.ranks.switches import in_words
from perfkit.additions.scripts.watched import Launch
from perfkit.errors import InvalidValue
from perfkit.recipe import Value

_PACKAGES = {name.partition(".")[0] for name in LAUNCHERS}  # their modules start ranks, too


@dataclass(frozen=True)
class RanksLaunch(Launch):
    """A command line that starts ranks. Tables show `program`: its script, or the switches set on it."""

    command: tuple[str, ...] = ()  # such as `torchrun --nproc-per-node 2 train.py`, as words
    settings: tuple[tuple[str, Value], ...] = ()  # switches that are set on all ranks

    def __post_init__(self) -> None:
        if os.name == "nt":
            raise InvalidValue("scripts cannot be watched on this system", "Use Linux, macOS or WSL")
        if _path_of(self.command[0]) is None:
            what = f"there is no program {self.command[0]} on the path"
            raise InvalidValue(what, "Write the command as you start it, such as torchrun … train.py")

    @property
    def script(self) -> Path | None:
        """The first argument that is a Python file."""
        script = _script_in(self.command)
        return Path(script).absolute() if script else None

    @property
    def words(self) -> list[str]:
        return [_path_of(self.command[0]) or self.command[0], *self.command[1:]]

    @property
    def single(self) -> Launch | None:
        """The launch of a single process by `python`, without its options; None for launchers of ranks."""
        python, *words = self.command
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c"):
            words = words[2:] if words[0] in ("-X", "-W") else words[1:]
        is_module = words[:1] == ["-m"]
        if is_module:
            words = words[1:]
        if not words or not Path(python).name.startswith("python"):
            return None
        program, *arguments = words
        starts_ranks = is_module and program.partition(".")[0] in _PACKAGES
        if program.startswith("-") or starts_ranks:
            return None
        return Launch(program, tuple(arguments), is_module)

    def describe(self) -> str:
        suffix = f" with {in_words(dict(self.settings))}" if self.settings else ""
        return shlex.join(self.command) + suffix


def _path_of(program: str) -> str | None:
    """The path of a program, preferably in the environment of perfkit itself."""
    return shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)


def _script_in(command: Sequence[str]) -> str | None:
    return next((word for word in command[1:] if word.endswith(".py") and Path(word).is_file()), None)


def launch_of(command: Sequence[str], settings: Mapping[str, Value] | None = None) -> RanksLaunch:
    """The launch of a command, unchanged or with switches set from outside."""
    title = in_words(settings or {}) or _script_in(command) or command[0]
    return RanksLaunch(title, command=tuple(command), settings=tuple((settings or {}).items()))


def launch_with(command: Sequence[str], script: str, original: str) -> RanksLaunch:
    """A command with `script` in place of `original`, or at its end if `original` is not in it."""
    words = [script if word == original else word for word in command]
    return launch_of(words if original in command else [*command, script])
