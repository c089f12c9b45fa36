"""How a script is started: as the user would, in its own folder, with its own arguments."""

import difflib
import sys
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
        program: a script, or a module (with `module`).
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
        if self.module or self.script:
            return [sys.executable, *["-m"] * self.module, self.program, *self.arguments]
        names = [path.name for path in self.where.glob("*.py") if path.is_file()]
        near = difflib.get_close_matches(Path(self.program).name, names, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else "Name a Python file, or a module with -m"
        raise InvalidValue(f"there is no script '{self.program}' in {self.where}", hint)

    def describe(self) -> str:
        """The command as one types it."""
        return " ".join(["python", *["-m"] * self.module, self.program, *self.arguments])
