"""A script's working directory for a measuring run: a mirror of links and copies; `outputs` does the rest.

Folders on the way, and those with Python files, are real; Python files are copies, so that a path made from
`__file__` leads into the mirror, also by `Path(__file__).resolve()`; all else is linked.
"""

import os
import shutil
from pathlib import Path

from perfkit.errors import InvalidValue
from perfkit.scripts.outputs import make_real

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
    """A mirror of the file system as far as it is needed; relative paths lead where they would."""

    def __init__(self, root: Path) -> None:
        make_real(str(root), root.anchor, _MOST_ENTRIES)
        self._root = root.resolve()

    def place(self, path: Path) -> Path:
        """The place of a real path in the mirror."""
        return self._root.joinpath(*path.resolve().parts[1:])

    def add(self, folder: Path) -> Path:
        """Mirrors a folder, with the Python files below it.

        Raises:
            InvalidValue: the folder holds too much to be linked.
        """
        folder = folder.resolve()
        here = self._make(folder)
        if not any(here.iterdir()) and any(folder.iterdir()):
            what = f"{folder} has more than {_MOST_ENTRIES:,} entries, too many to link for a measuring run"
            raise InvalidValue(what, "Start the script from another folder")
        folders = [folder]
        for real in folders:  # the list grows
            folders += _folders(real)[: max(0, _MOST_FOLDERS - len(folders))]
            for source in real.glob("*.py"):
                if source.is_file():
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
        for real in [*reversed(folder.parents), folder][1:]:
            here = self.place(real)
            if here.is_symlink() or not here.exists():
                make_real(str(here), str(real), _MOST_ENTRIES)
        return self.place(folder)


def _folders(folder: Path) -> list[Path]:
    """The folders below that may hold a project's own Python files."""
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    names = sorted(entry.name for entry in entries if not entry.name.startswith((".", "__pycache__")))
    return [folder / name for name in names if not (folder / name / "pyvenv.cfg").exists()]
