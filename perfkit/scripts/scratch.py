"""A script's working directory for a measuring run, made of links; `watch.outputs` does the rest."""

from __future__ import annotations

import os
from pathlib import Path

from perfkit.errors import InvalidValue

_MOST = 20_000
"""Entries of a folder that are linked; of those above it, folders with more are left out."""

QUIET = {
    "WANDB_MODE": "disabled", "MLFLOW_TRACKING_URI": "file:./mlruns", "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug", "CLEARML_OFFLINE_MODE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip
"""Variables that keep experiment trackers from recording a run that only measures."""


def mirror(root: Path, folder: Path) -> Path:
    """The folder's place below `root`: links to what it holds, and to what lies beside it on every level.

    Relative paths then lead where they would, also those with `..`.

    Raises:
        InvalidValue: it holds too much to be linked.
    """
    folder = folder.resolve()
    parts = folder.relative_to(folder.anchor).parts
    here, real = root, Path(folder.anchor)
    for name in parts:
        _link_all(real, here, name)
        here, real = here / name, real / name
        here.mkdir()
    if not _link_all(real, here, ""):
        raise InvalidValue(
            f"{folder} has more than {_MOST:,} entries, too many to link for a measuring run",
            "Start the script from another folder, or let it write where it would with --in-place",
        )
    return here


def put(root: Path, path: Path, data: bytes) -> Path:
    """A file of its own, in the mirror below `root`, for a real one.

    Args:
        root: of a mirror.
        path: of the real file, absolute.
        data: what the mirror's file holds.

    Returns:
        Where it is.
    """
    here, real = root, Path(path.anchor)
    for name in path.parts[1:-1]:
        here, real = here / name, real / name
        if here.is_symlink():
            here.unlink()
            here.mkdir()
            _link_all(real, here, "")
    file = here / path.name
    file.unlink(missing_ok=True)
    file.write_bytes(data)
    return file


def _link_all(real: Path, here: Path, but: str) -> bool:
    try:
        names = os.listdir(real)
    except OSError:
        return True
    if len(names) > _MOST:
        return False
    for name in names:
        if name != but:
            os.symlink(real / name, here / name)
    return True
