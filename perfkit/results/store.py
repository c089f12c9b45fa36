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

ORIGIN = "recording"
"""The fact of a run that was played from a recording: where that was made, and when."""
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
_REPAIR = (
    'To start a new one beside it: python -c "import perfkit; perfkit.RunStore.repair()"; nothing is deleted'
)


class RunStore:
    """The runs of this user. Any number of threads and processes may use one file at once.

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
            runs.check_schema(str(self.path), version, SCHEMA)
            if version < SCHEMA:
                database.executescript(f"BEGIN IMMEDIATE; {_TABLE} PRAGMA user_version = {SCHEMA}; COMMIT;")

    def add(self, run: Run) -> None:
        """Keeps a run, wholly or not at all.

        Raises:
            StoreError: a run of that id is there already, or the file cannot be written.
        """
        machine_id = str(run.machine.get("id", ""))
        row = (run.id, run.session, run.created, run.stage, run.workload, machine_id, run.status)
        with self._open() as database:
            database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, runs.encode(run)))

    def get(self, run_id: str) -> Run:
        """A run by its id, or by a prefix that no other id has.

        Raises:
            InvalidValue: no such run, or several.
            StoreError: the run is damaged, or of a newer perfkit.
        """
        with self._open() as database:
            query = "SELECT id, body FROM runs WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id"
            matches = dict(database.execute(query, (run_id,)).fetchall())
        if run_id in matches or len(matches) == 1:
            return runs.decode(matches.get(run_id) or next(iter(matches.values())))
        if not matches:
            raise InvalidValue(f"no run '{run_id}' in {self.path}", "`perfkit runs` lists them")
        some = ", ".join(list(matches)[:5])
        raise InvalidValue(f"{len(matches)} runs begin with '{run_id}'", f"Give more of its id: {some} …")

    def list(self, limit: int = 100, session: str | None = None, workload: str | None = None) -> _Runs:
        """Runs, newest first; `problems` says which could not be read.

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
        runs = self._select(1, stage=stage, workload=workload, machine=machine_id, status="ok")
        return runs[0] if runs else None

    def sessions(self) -> Sequence[str]:
        """Every session, newest first."""
        with self._open() as database:
            query = "SELECT session FROM runs GROUP BY session ORDER BY max(created) DESC, max(rowid) DESC"
            return [session for (session,) in database.execute(query)]

    def _select(self, limit: int, **wanted: str | None) -> _Runs:
        given = {name: value for name, value in wanted.items() if value is not None}
        terms = [_PART_OF if name == "workload" else f"{name} = :{name}" for name in given]
        where = " AND ".join(["1", *terms])
        self.problems = []
        selected: list[Run] = []
        with self._open() as database:
            query = f"SELECT id, body FROM runs WHERE {where} ORDER BY created DESC, rowid DESC"
            for run_id, body in database.execute(query, given):
                if len(selected) == limit:
                    break
                try:
                    selected.append(runs.decode(body))
                except StoreError as problem:
                    self.problems.append(f"run {run_id} was left out: {problem}")
        return selected

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
            Where the damaged file is now; None where there was nothing to repair.
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
    """The store of this user."""
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


# ---------------------------------------------------------------- recordings


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Where a recording comes from."""

    machine: dict[str, Any]
    when: str
    """UTC, ISO 8601."""
    command: str
    commit: str | None = None
    """Of perfkit."""

    def describe(self) -> str:
        """Where, when and how, in a sentence."""
        code = f" of perfkit {self.commit[:10]}" if self.commit else ""
        return f"Recorded {self.when[:10]} on {machine.describe(self.machine)}, by `{self.command}`{code}."


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of a named machine."""

    schema: int = SCHEMA
    provenance: Provenance
    runs: list[Run]


def provenance() -> Provenance:
    """The provenance of what is recorded here and now, by this process's command."""
    facts = machine.facts()
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    # A recording is shared: it names files without their paths on this machine.
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv]
    command = shlex.join([Path(words[0]).name, *words[1:]])
    return Provenance(machine=facts, when=when, command=command, commit=facts["commit"])


def save_recording(recorded: Sequence[Run], path: Path) -> None:
    """Writes runs as a recording: the whole file or none of it; its folder is made where it is missing.

    Raises:
        InvalidValue: they were played from a recording, which has its own provenance.
        StoreError: it cannot be written.
    """
    if any(ORIGIN in run.facts for run in recorded):
        raise InvalidValue("these runs are of a recording already", "Copy its file instead")
    recording = Recording(provenance=provenance(), runs=list(recorded))
    with _errors_in_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        machine.write_atomically(path, msgspec.json.format(msgspec.json.encode(recording), indent=1))


def load_recording(path: Path) -> Recording:
    """A recording from a file; nothing in it is executed, every field is checked.

    Raises:
        StoreError: there is no such file, it is too large or not a recording, or a newer perfkit wrote it.
    """
    with _errors_in_words(path):
        if path.stat().st_size > MAX_RECORDING_BYTES:
            limit = f"{MAX_RECORDING_BYTES >> 20} MiB"
            raise StoreError(f"{path} has over {limit}", "perfkit writes no recording of that size")
        text = path.read_bytes()
    try:
        data = msgspec.json.decode(text)
        runs.check_schema(str(path), data["schema"], SCHEMA)
        origin = msgspec.convert(data["provenance"], Provenance)
        recording = Recording(provenance=origin, runs=[runs.from_data(run) for run in data["runs"]])
        if not recording.runs:
            raise ValueError("it holds no runs")
        for about in (origin.machine, *(run.machine for run in recording.runs)):
            machine.describe(about)  # whoever shows a recording names its machine
        return recording
    except runs.INVALID as problem:
        raise StoreError(
            f"{path} is not a recording of perfkit: {problem}", "Restore or record it again"
        ) from None
