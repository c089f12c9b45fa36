"""How a script is started: as the user would, in its own folder, with its own arguments."""

import difflib
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfkit.errors import InvalidValue

_LAUNCHERS = {"torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed"}
"""Programs that start the script in processes of its own."""


@dataclass(frozen=True)
class Launch:
    """A command line that trains.

    Args:
        program: a script, a module (with `module`), or an installed command.
        arguments: those of the program.
        module: whether it is started as `python -m program`.
        folder: where it is started; the current folder if None.
        replaced: files (absolute paths) that have another content in a measuring run, such as patched ones.
    """

    program: str
    arguments: Sequence[str] = ()
    module: bool = False
    folder: Path | None = None
    replaced: tuple[tuple[Path, bytes], ...] = ()

    @property
    def where(self) -> Path:
        return (self.folder or Path()).absolute()

    @property
    def script(self) -> Path | None:
        """The script's file, if the program is one."""
        path = self.where / self.program
        return path if not self.module and path.is_file() else None

    @property
    def name(self) -> str:
        """What the script is called in results: its file, or its module."""
        return self.program if self.module else Path(self.program).name

    def command(self) -> list[str]:
        """The words to start; `InvalidValue` where there is no such program, or it starts several ranks."""
        if self.script is None and Path(self.program).name in _LAUNCHERS:
            what = f"{self.program} starts several processes, and a script is watched in one"
            raise InvalidValue(what, "Name the script itself, and let it train as a single rank")
        if self.module:
            return [sys.executable, "-m", self.program, *self.arguments]
        if self.script:
            return [sys.executable, self.program, *self.arguments]
        if "/" not in self.program and not self.program.endswith(".py"):
            scripts = sysconfig.get_path("scripts")
            path = shutil.which(self.program, path=scripts) or shutil.which(self.program)
            if path:
                return [path, *self.arguments]
        raise InvalidValue(f"there is no script '{self.program}' in {self.where}", self._hint())

    def _hint(self) -> str:
        names = [path.name for path in self.where.glob("*.py")]
        near = difflib.get_close_matches(Path(self.program).name, names, n=1)
        if near:
            return f"Did you mean '{near[0]}'?"
        return "Name a Python file, a module with -m, or an installed command"

    def describe(self) -> str:
        """The command as one types it."""
        start = "python -m" if self.module else "python" if self.script else ""
        return " ".join(filter(None, [start, self.program, *self.arguments]))
