"""Where perfkit keeps its files, and how it writes them. Asking for a folder does not create it."""

import os
import sys
import sysconfig
import tempfile
from pathlib import Path


def checkout() -> Path | None:
    """The working tree that perfkit runs from; None where it was installed without one."""
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "pyproject.toml").is_file() else None


def import_path() -> str:
    """PYTHONPATH of a process that is to find what this one does: perfkit, and what a notebook has added.

    The process's own libraries come first, as usual.
    """
    here = str(Path(__file__).parents[2])
    own = {*sysconfig.get_paths().values(), here}
    added = [path for path in sys.path if path and path not in own and "lib-dynload" not in path]
    return os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")]), *added])


def data_folder() -> Path:
    """The folder for all data: PERFKIT_DATA, else the checkout's `data/`, else `./perfkit-data`."""
    if given := os.environ.get("PERFKIT_DATA"):
        return Path(given).expanduser()
    tree = checkout()
    return tree / "data" if tree else Path("perfkit-data")


def cache_folder() -> Path:
    """The folder for data sets and compiled code."""
    return data_folder() / "cache"


def runs_folder() -> Path:
    """The folder for the store of runs."""
    return data_folder() / "runs"


def own_recordings_folder() -> Path:
    """The folder for the user's own recordings; the shipped ones are in the checkout's `data/recordings/`."""
    return runs_folder() / "recordings"


def write_atomically(path: Path, content: bytes) -> None:
    """Writes the whole file or nothing: a reader never sees half of it. The folder must exist.

    Raises:
        OSError: the file cannot be written.
    """
    handle, temporary = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)  # mkstemp makes it readable by its owner only
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
