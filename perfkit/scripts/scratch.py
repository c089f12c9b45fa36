"""A script's working directory for a measuring run: a mirror of links and copies; `outputs` does the rest.

Folders on the way, and those with Python files, are real; Python files are copies, so that a path made from
`__file__` leads into the mirror, also by `Path(__file__).resolve()`; all else is linked.
"""

import os
import shutil
from pathlib import Path

from perfkit.errors import InvalidValue

_MOST_ENTRIES = 20_000
"""Entries of a folder that are linked; a folder above it with more is left out."""
_MOST_FOLDERS = 500
"""Folders that are searched for Python files, the nearest first."""

QUIET = {
    "WANDB_MODE": "disabled",
    "MLFLOW_TRACKING_URI": "file:./mlruns",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "CLEARML_OFFLINE_MODE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Variables that keep experiment trackers from recording a run that only measures."""


class Mirror:
    """A mirror of the whole file system as far as it is needed; relative paths lead where they would.

    Args:
        root: an empty folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def place(self, path: Path) -> Path:
        """The place of a real path in the mirror."""
        path = path.resolve()
        return self._root.joinpath(*path.parts[1:])

    def add(self, folder: Path) -> Path:
        """Mirrors a folder, with the Python files below it.

        Raises:
            InvalidValue: the folder holds too much to be linked.
        """
        folder = folder.resolve()
        here = self._make(folder)
        if not any(here.iterdir()) and any(folder.iterdir()):
            raise InvalidValue(
                f"{folder} has more than {_MOST_ENTRIES:,} entries, too many to link for a measuring run",
                "Start the script from another folder, or let it write where it would with --in-place",
            )
        waiting = [folder]
        for _ in range(_MOST_FOLDERS):
            if not waiting:
                break
            real = waiting.pop(0)
            waiting += _folders(real)
            sources = [path for path in real.glob("*.py") if path.is_file()]
            for source in sources:
                self.put(source, source.read_bytes())
        return here

    def put(self, path: Path, data: bytes) -> Path:
        """A file of the mirror with this content, in place of the real one; returns its place."""
        path = path.resolve()
        here = self._make(path.parent) / path.name
        here.unlink(missing_ok=True)
        here.write_bytes(data)
        if path.exists():
            shutil.copystat(path, here)
        return here

    def _make(self, folder: Path) -> Path:
        """A real folder in the mirror, with links to what the real one and those above it hold."""
        here, real = self._root, Path(folder.anchor)
        if not any(here.iterdir()):
            _link_all(real, here)
        for name in folder.parts[1:]:
            here, real = here / name, real / name
            if here.is_symlink() or not here.exists():
                here.unlink(missing_ok=True)
                here.mkdir()
                _link_all(real, here)
        return here


def _folders(folder: Path) -> list[Path]:
    """The folders below that may hold a project's own Python files."""
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    names = [
        entry.name for entry in entries if entry.name != "__pycache__" and not entry.name.startswith(".")
    ]
    paths = [folder / name for name in sorted(names)]
    return [path for path in paths if not (path / "pyvenv.cfg").exists()]


def _link_all(real: Path, here: Path) -> None:
    try:
        names = os.listdir(real)
    except OSError:
        return
    if len(names) <= _MOST_ENTRIES:
        for name in names:
            os.symlink(real / name, here / name)
