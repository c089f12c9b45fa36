"""Where runs are kept: an SQLite file that only grows, and recordings, which are files for others to open."""

from __future__ import annotations

import contextlib
import datetime
import shlex
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfkit import machine
from perfkit.errors import InvalidValue, StoreError
from perfkit.results import run as runs
from perfkit.results.run import Run

SCHEMA = 1
"""Version of the tables and of recordings; each run in them has one of its own. 1 (2026-11): the first."""

MAX_RECORDING_BYTES = 64 * 1024**2

_TABLE = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, session TEXT NOT NULL, created TEXT NOT NULL, stage TEXT NOT NULL,
    workload TEXT NOT NULL, machine TEXT NOT NULL, status TEXT NOT NULL, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_session ON runs (session);
CREATE INDEX IF NOT EXISTS by_created ON runs (created);
"""
_PART_OF = (
    """instr('.' || replace(workload, ':', '.') || '.', '.' || replace(:workload, ':', '.') || '.') > 0"""
)
_Runs = list[Run]
_UPDATE = "Update perfkit: git pull, then make lab"
_REPAIR = (
    'To start a new one beside it: python -c "import perfkit; perfkit.RunStore.repair()"; nothing is deleted'
)


class RunStore:
    """The runs of this person. Any number of threads and processes may use one file at once.

    Args:
        path: of the SQLite file; the one in `machine.runs_folder()` if None. Made where it is missing.

    Raises:
        StoreError: the file cannot be made or read, is damaged, or is of a newer perfkit.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        self.problems: list[str] = []
        """What the last reading had to leave out."""
        with self._open() as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > SCHEMA:
                raise StoreError(f"{self.path} was written by a newer perfkit (schema {version})", _UPDATE)
            if version < SCHEMA:
                database.executescript(f"BEGIN IMMEDIATE; {_TABLE} PRAGMA user_version = {SCHEMA}; COMMIT;")

    def add(self, run: Run) -> None:
        """Keeps a run, wholly or not at all.

        Raises:
            StoreError: a run of that id is there already, or the file cannot be written.
        """
        with _errors_in_words(self.path):
            self._insert(run)

    def _insert(self, run: Run) -> None:
        row = (
            run.id,
            run.session,
            run.created,
            run.stage,
            run.workload,
            str(run.machine.get("id", "")),
            run.status,
            runs.encode(run),
        )
        with self._open() as database:
            database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)

    def get(self, run_id: str) -> Run:
        """A run by its id, or by a beginning of it that no other has.

        Raises:
            InvalidValue: no such run, or several.
            StoreError: the run is damaged, or of a newer perfkit.
        """
        with self._open() as database:
            query = "SELECT id, body FROM runs WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id"
            found = dict(database.execute(query, (run_id,)).fetchall())
        if run_id in found or len(found) == 1:
            return runs.decode(found.get(run_id) or next(iter(found.values())))
        if not found:
            raise InvalidValue(f"no run '{run_id}' in {self.path}", "`perfkit runs` lists them")
        some = ", ".join(list(found)[:5])
        raise InvalidValue(f"{len(found)} runs begin with '{run_id}'", f"Give more of its id: {some} …")

    def list(self, limit: int = 100, session: str | None = None, workload: str | None = None) -> _Runs:
        """Runs, newest first; `problems` tells which could not be read.

        Args:
            limit: at most this many.
            session: of this session only.
            workload: of this workload only, by its reference or any whole part of that (`photos`).
        """
        return self._select(limit, session=session, workload=workload)

    def latest(
        self, stage: str | None = None, workload: str | None = None, machine_id: str | None = None
    ) -> Run | None:
        """The newest measured run of a stage, a workload and a machine; None where there is none."""
        found = self._select(1, stage=stage, workload=workload, machine=machine_id, status="ok")
        return found[0] if found else None

    def sessions(self) -> Sequence[str]:
        """Every session, newest first."""
        with self._open() as database:
            query = "SELECT session FROM runs GROUP BY session ORDER BY max(created) DESC, max(rowid) DESC"
            return [session for (session,) in database.execute(query)]

    def _select(self, limit: int, **wanted: str | None) -> _Runs:
        given = {name: value for name, value in wanted.items() if value is not None}
        terms = " AND ".join(
            ["1", *(_PART_OF if name == "workload" else f"{name} = :{name}" for name in given)]
        )
        self.problems = []
        found: list[Run] = []
        with self._open() as database:
            query = f"SELECT id, body FROM runs WHERE {terms} ORDER BY created DESC, rowid DESC"
            for run_id, body in database.execute(query, given):
                if len(found) == limit:
                    break
                try:
                    found.append(runs.decode(body))
                except StoreError as problem:
                    self.problems.append(f"run {run_id} was left out: {problem}")
        return found

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction: none is shared by threads, none is left open."""
        with _errors_in_words(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as database:
                with contextlib.suppress(sqlite3.OperationalError):  # network disks cannot; it works without
                    database.execute("PRAGMA journal_mode = WAL")
                with database:
                    yield database

    @staticmethod
    def repair(path: Path | None = None) -> Path | None:
        """Moves a damaged store aside, so that a new one can start; deletes nothing.

        Returns:
            Where the damaged file is now; None where there was nothing to mend.
        """
        path = path or default_path()
        if not path.exists() or _sound(path):
            return None
        moved = path.with_name(f"{path.name}.damaged-{datetime.datetime.now():%Y%m%d-%H%M%S-%f}")
        with _errors_in_words(path):
            for end in ("-wal", "-shm", ""):
                if Path(f"{path}{end}").exists():
                    Path(f"{path}{end}").rename(f"{moved}{end}")
        return moved


def default_path() -> Path:
    """The store of this person."""
    return machine.runs_folder() / "runs.sqlite"


def _sound(path: Path) -> bool:
    with _errors_in_words(path), contextlib.closing(sqlite3.connect(path, timeout=5)) as database:
        try:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            (state,) = database.execute("PRAGMA quick_check").fetchone()
            (tables,) = database.execute("SELECT count(*) FROM sqlite_master WHERE name = 'runs'").fetchone()
            return bool(state == "ok" and (tables or version == 0))
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError:
            return False


@contextlib.contextmanager
def _errors_in_words(path: Path) -> Iterator[None]:
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
    """What happened, and the remedy, for what SQLite or the system says."""
    elsewhere = "or set PERFKIT_DATA to another folder"
    known = {
        "full": ("the disk is full", f"Free some space, {elsewhere}"),
        "No space": ("the disk is full", f"Free some space, {elsewhere}"),
        "quota": ("the disk quota is used up", f"Free some space, {elsewhere}"),
        "locked": ("the store is held by another process", "Wait until that has ended, then repeat"),
        "malformed": ("the store is damaged", _REPAIR),
        "not a database": ("the store is damaged", _REPAIR),
        "no such": ("the store is damaged", _REPAIR),
    }
    access = ("the store cannot be read or written", f"Check the permissions of file and folder, {elsewhere}")
    no_file = "No such file" in message
    return next((told for word, told in known.items() if word in message and not no_file), access)


# ---------------------------------------------------------------- recordings


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a recording comes from."""

    machine: dict[str, Any]
    when: str
    """UTC, ISO 8601."""
    command: str
    commit: str | None = None
    """Of perfkit."""


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of a named machine."""

    provenance: Provenance
    runs: list[Run]


class _Version(msgspec.Struct):
    schema: int


class _File(msgspec.Struct):
    schema: int
    provenance: Provenance
    runs: list[msgspec.Raw]


def provenance(command: str | None = None) -> Provenance:
    """Of what is recorded here and now; the command is that of this process if None."""
    facts = machine.facts()
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    # A recording travels: the names of files, not where they lie on this machine.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    said = command or shlex.join([Path(words[0]).name, *words[1:]])
    return Provenance(machine=facts, when=when, command=said, commit=facts["commit"])


def recordings() -> list[Path]:
    """The recordings in the data folder, by name."""
    return sorted((machine.data_folder() / "recordings").glob("*.json"))


def save_recording(recorded: Sequence[Run], path: Path, origin: Provenance | None = None) -> None:
    """Writes runs as a recording: the whole file or none of it.

    Args:
        recorded: the runs.
        path: of the JSON file; its folder is made where it is missing.
        origin: where they come from; `provenance()` if None.

    Raises:
        StoreError: it cannot be written.
    """
    raw = [msgspec.Raw(runs.encode(run)) for run in recorded]
    text = msgspec.json.format(msgspec.json.encode(_File(SCHEMA, origin or provenance(), raw)), indent=1)
    with _errors_in_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        machine.write_atomically(path, text)


def load_recording(path: Path) -> Recording:
    """A recording from a file; nothing in it is executed, every field is checked.

    Raises:
        StoreError: no file, too large, no recording, or of a newer perfkit.
    """
    with _errors_in_words(path):
        if path.stat().st_size > MAX_RECORDING_BYTES:
            raise StoreError(
                f"{path} has over {MAX_RECORDING_BYTES >> 20} MiB", "That is no recording of perfkit"
            )
        text = path.read_bytes()
    try:
        version = msgspec.json.decode(text, type=_Version).schema
        if version > SCHEMA:
            raise StoreError(f"{path} was written by a newer perfkit (schema {version})", _UPDATE)
        file = msgspec.json.decode(text, type=_File)
    except (ValueError, RecursionError) as problem:
        raise StoreError(
            f"{path} is no recording of perfkit: {problem}", "Restore or record it again"
        ) from None
    return Recording(provenance=file.provenance, runs=[runs.decode(bytes(raw)) for raw in file.runs])
