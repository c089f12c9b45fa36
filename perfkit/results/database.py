"""SQLite files that threads and processes use at once, and what went wrong with one in words."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from perfkit.errors import StoreError

_REPAIR = (
    'To start a new one beside it: python -c "import perfkit; perfkit.RunStore.repair()"; nothing is deleted'
)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for one transaction: none is shared by threads, none is left open.

    Raises:
        StoreError: the file cannot be made, read or written, or is damaged.
    """
    with errors_in_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(path, timeout=30)) as database:
            with contextlib.suppress(sqlite3.OperationalError):  # network disks cannot; it works without
                database.execute("PRAGMA journal_mode = WAL")
            with database:
                yield database


def move_aside(path: Path) -> Path:
    """Renames a file with its journals, so that a new one can start; deletes nothing. Returns where it is."""
    moved = path.with_name(f"{path.name}.damaged-{datetime.datetime.now():%Y%m%d-%H%M%S-%f}")
    with errors_in_words(path):
        for end in ("-wal", "-shm", ""):
            if Path(f"{path}{end}").exists():
                Path(f"{path}{end}").rename(f"{moved}{end}")
    return moved


def is_sound(path: Path, table: str) -> bool:
    """Whether a file is an undamaged database, with this table or still empty."""
    with errors_in_words(path), contextlib.closing(sqlite3.connect(path, timeout=5)) as database:
        try:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            (state,) = database.execute("PRAGMA quick_check").fetchone()
            query = "SELECT count(*) FROM sqlite_master WHERE name = ?"
            (tables,) = database.execute(query, (table,)).fetchone()
            return bool(state == "ok" and (tables or version == 0))
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            return False


@contextlib.contextmanager
def errors_in_words(path: Path) -> Iterator[None]:
    """Turns what SQLite and the system raise into a StoreError with a remedy."""
    try:
        yield
    except sqlite3.IntegrityError:
        raise StoreError(
            f"{path} holds a run of this id already", "Runs never change: store a new one"
        ) from None
    except (sqlite3.DatabaseError, OSError) as problem:
        what, remedy = _explained(str(problem))
        raise StoreError(f"{what}: {path} ({problem})", remedy) from problem


def _explained(message: str) -> tuple[str, str]:
    """What happened, and the remedy, for a message of SQLite or the system."""
    elsewhere = "or set PERFKIT_DATA to another folder"
    space, damaged = f"Free some space, {elsewhere}", ("the store is damaged", _REPAIR)
    access = ("the store cannot be read or written", f"Check the permissions of file and folder, {elsewhere}")
    explanations = {
        "No such file": access,
        "full": ("the disk is full", space),
        "No space": ("the disk is full", space),
        "quota": ("the disk quota is used up", space),
        "locked": ("the store is held by another process", "Wait until that has ended, then repeat"),
        "malformed": damaged,
        "not a database": damaged,
        "no such": damaged,
    }
    return next((words for part, words in explanations.items() if part in message), access)
