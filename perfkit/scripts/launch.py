"""How a script is started: as the user would, in its own folder, with its own arguments."""

import difflib
import hashlib
import importlib.util
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfkit.errors import InvalidValue

_LAUNCHERS = {
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate",
    "accelerate.commands.launch", "deepspeed",
}  # fmt: skip
"""Programs that start the script in processes of its own."""


@dataclass(frozen=True)
class Launch:
    """A command line that trains.

    Args:
        program: a script, a module (with `module`), or an installed command such as `torchrun`.
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
        """The folder in which it is started."""
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

    @property
    def is_launcher(self) -> bool:
        """Whether it trains in processes that it starts."""
        return self.script is None and Path(self.program).name in _LAUNCHERS

    def command(self) -> list[str]:
        """The words to start.

        Raises:
            InvalidValue: there is no such script, module or command.
        """
        if self.module:
            return [sys.executable, "-m", self.program, *self.arguments]
        if self.script:
            return [sys.executable, self.program, *self.arguments]
        scripts = sysconfig.get_path("scripts")
        if "/" not in self.program and not self.program.endswith(".py"):
            path = shutil.which(self.program, path=scripts) or shutil.which(self.program)
            if path:
                return [path, *self.arguments]
        raise InvalidValue(f"there is no script '{self.program}' in {self.where}", self._hint())

    def _hint(self) -> str:
        names = [path.name for path in self.where.glob("*.py")]
        near = difflib.get_close_matches(Path(self.program).name, names, n=1)
        if near:
            return f"Did you mean '{near[0]}'?"
        top = self.program.split(".")[0]
        if top.isidentifier() and importlib.util.find_spec(top):
            return f"For the module start it with -m {self.program}"
        return "Name a Python file, a module with -m, or an installed command such as torchrun"

    def describe(self) -> str:
        """The command as one types it."""
        start = "python -m" if self.module else "python" if self.script else ""
        return " ".join(filter(None, [start, self.program, *self.arguments]))

    def digest(self) -> str:
        """The beginning of the SHA-256 of the script's file; empty if there is no single file."""
        module = self.where.joinpath(*self.program.split(".")).with_suffix(".py")
        file = self.script or (module if self.module and module.is_file() else None)
        if file is None:
            return ""
        content = dict(self.replaced).get(file.resolve()) or file.read_bytes()
        return hashlib.sha256(content).hexdigest()[:16]
