"""Where perfkit keeps its files. Nothing is created here."""

from __future__ import annotations

import os
from pathlib import Path


def checkout() -> Path | None:
    """The folder of the working tree that perfkit runs from; None where it was installed without one."""
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "pyproject.toml").is_file() else None


def data_folder() -> Path:
    """Where data lies: PERFKIT_DATA, else the checkout's `data/`, else `./perfkit-data`."""
    if given := os.environ.get("PERFKIT_DATA"):
        return Path(given).expanduser()
    tree = checkout()
    return tree / "data" if tree else Path("perfkit-data")


def cache_folder() -> Path:
    """Where data sets and compiled code are kept."""
    return data_folder() / "cache"


def runs_folder() -> Path:
    """Where the store of runs lies."""
    return data_folder() / "runs"
