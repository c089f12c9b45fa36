"""Where runs are kept: one SQLite table, which any number of threads and processes may use at once."""

import contextlib
import datetime
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfkit import machine
from perfkit.errors import InvalidValue, StoreError, explain
from perfkit.results import run as runs
from perfkit.results.run import Run
from perfkit.results.simulated import Simulated
from perfkit.results.stats import Estimate, Ratio

SCHEMA = 2
"""Version of the table. Version 1 was never released."""
MAX_TEXT = 300
"""Characters of a name or note; the rest is cut off."""

_TABLE = """
CREATE TABLE runs (
    id TEXT PRIMARY KEY, created TEXT NOT NULL, session TEXT NOT NULL, workload TEXT NOT NULL,
    name TEXT NOT NULL DEFAULT '', note TEXT NOT NULL DEFAULT '', parent TEXT NOT NULL DEFAULT '', guess REAL,
    entry BLOB NOT NULL, body BLOB NOT NULL
);
CREATE INDEX by_created ON runs (created);
"""
_OF_WORKLOAD = (
    "instr('.' || replace(workload, ':', '.') || '.', '.' || replace(:workload, ':', '.') || '.') > 0"
)
"""Any dotted part of a reference names its workload: `photos` is `perfkit.workloads.photos:Photos`."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run without its measured series: a line of the history."""

    id: str
    session: str
    created: str
    """UTC, ISO 8601."""
    stage: str
    title: str = ""
    workload: str
    preset: str = ""
    device: str
    status: str = "ok"
    recipe: dict[str, Any]
    samples_per_s: Estimate | None = None
    against_baseline: Ratio | None = None
    disturbed: float | None = None
    """Share of the cores that others took, where too few rounds were free of it."""
    previous: str = ""
    """Id of the run that it was compared with."""
    simulated: Simulated | None = None
    name: str = ""
    """Written by the user, shown in place of the title."""
    note: str = ""
    parent: str = ""
    """Id of the run whose switches it started from."""
    guess: float | None = None
    """The speed-up that the user predicted before the result was known."""


def entry(run: Run) -> Entry:
    """The line of a run."""
    same = {name: getattr(run, name) for name in Entry.__struct_fields__ if name in Run.__struct_fields__}
    previous = run.pairing("previous")
    return Entry(
        **same,
        samples_per_s=run.samples_per_s,
        against_baseline=run.speedup("baseline") if run.samples_per_s else None,
        disturbed=run.disturbed,
        previous=previous.against if previous else "",
    )


class RunStore:
    """The runs of this user.

    Args:
        path: the SQLite file, by default in `machine.runs_folder()`. It is created where it is missing; a
            damaged one is moved aside, and the next use starts a new one.

    Raises:
        StoreError: the file cannot be read or written, is damaged, or belongs to another version.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or machine.runs_folder() / "runs.sqlite"
        self.problems: list[str] = []
        """What the last reading had to leave out."""
        with self._open() as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                database.execute("BEGIN IMMEDIATE")  # two kernels may start at once: only one makes the table
                (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _TABLE.split(";"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {SCHEMA}")
                version = SCHEMA
        if version != SCHEMA:
            raise StoreError(
                f"{self.path} is of another version of perfkit (its table {version}, this one's {SCHEMA})",
                "Move the file away, and a new store starts; or set PERFKIT_DATA to another folder",
            )

    # ------------------------------------------------------------ writing

    def add(self, run: Run, parent: str = "", guess: float | None = None) -> None:
        """Keeps a run, completely or not at all.

        Args:
            run: measured here.
            parent: id of the run whose switches it started from.
            guess: the speed-up that the user predicted.

        Raises:
            StoreError: a run with this id is there already, or the file cannot be written.
        """
        line = msgspec.json.encode(entry(run))
        values = (run.id, run.created, run.session, run.workload, parent, guess, line, runs.encode(run))
        columns = "id, created, session, workload, parent, guess, entry, body"
        with self._open() as database:
            database.execute(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)

    def mark(
        self,
        run_id: str,
        *,
        name: str | None = None,
        note: str | None = None,
        parent: str | None = None,
        guess: float | None = None,
    ) -> None:
        """Writes what is not None beside a run; an empty text removes it.

        Raises:
            StoreError: the file cannot be written.
        """
        texts = {"name": name, "note": note, "parent": parent}
        values: dict[str, Any] = {
            column: " ".join(text.split())[:MAX_TEXT] for column, text in texts.items() if text is not None
        }
        if guess is not None:
            values["guess"] = guess
        changes = ", ".join(f"{column} = :{column}" for column in values)
        if changes:
            with self._open() as database:
                database.execute(f"UPDATE runs SET {changes} WHERE id = :id", {**values, "id": run_id})

    def delete(self, ids: Iterable[str]) -> list[Run]:
        """Removes runs, all or none; returns them, so that `add` can bring them back.

        Raises:
            InvalidValue: one of them is not in the store.
            StoreError: one of them is damaged, or the file cannot be written.
        """
        removed = [self.get(run_id) for run_id in ids]
        with self._open() as database:
            database.executemany("DELETE FROM runs WHERE id = ?", [(run.id,) for run in removed])
        return removed

    # ------------------------------------------------------------ reading

    def history(self, limit: int = 10_000, workload: str | None = None) -> list[Entry]:
        """The lines of stored runs, newest first; `problems` says what is left out.

        Args:
            limit: at most this many.
            workload: of this workload only, by its reference or any whole part of that (`photos`).
        """
        self.problems = []
        entries = []
        columns = "id, entry, name, note, parent, guess"
        for run_id, line, name, note, parent, guess in self._rows(columns, limit, workload=workload):
            with self._leaving_out(run_id):
                marks = {"name": name, "note": note, "parent": parent, "guess": guess}
                entries.append(msgspec.structs.replace(msgspec.json.decode(line, type=Entry), **marks))
        return entries

    def runs(self, limit: int = 100, session: str | None = None, workload: str | None = None) -> list[Run]:
        """Runs, newest first; `problems` says what is left out.

        Args:
            limit: at most this many.
            session: of this session only.
            workload: as for `history`.
        """
        self.problems = []
        selected = []
        for run_id, body in self._rows("id, body", limit, session=session, workload=workload):
            with self._leaving_out(run_id):
                selected.append(runs.decode(body))
        return selected

    def get(self, run_id: str) -> Run:
        """A run by its id, or by a prefix that no other id has.

        Raises:
            InvalidValue: no such run, or several.
            StoreError: the run is damaged, or of another version.
        """
        query = "SELECT id, body FROM runs WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id"
        with self._open() as database:
            matches = dict(database.execute(query, (run_id,)).fetchall())
        if run_id in matches or len(matches) == 1:
            return runs.decode(matches.get(run_id) or next(iter(matches.values())))
        if not matches:
            raise InvalidValue(f"no run '{run_id}' in {self.path}", "`perfkit runs` lists them")
        some = ", ".join([*matches][:5])
        raise InvalidValue(f"{len(matches)} runs begin with '{run_id}'", f"Give more of its id: {some} …")

    def guess(self, run_id: str) -> float | None:
        """The speed-up that the user predicted for a run; None without a guess."""
        with self._open() as database:
            row = database.execute("SELECT guess FROM runs WHERE id = ?", (run_id,)).fetchone()
        return row[0] if row else None

    def sessions(self) -> Sequence[str]:
        """Every session, newest first."""
        query = "SELECT session FROM runs GROUP BY session ORDER BY max(created) DESC, max(rowid) DESC"
        with self._open() as database:
            return [session for (session,) in database.execute(query)]

    def _rows(self, columns: str, limit: int, **wanted: str | None) -> Sequence[Any]:
        values = {name: value for name, value in wanted.items() if value is not None}
        terms = [_OF_WORKLOAD if name == "workload" else f"{name} = :{name}" for name in values]
        where = " AND ".join(["1", *terms])
        query = f"SELECT {columns} FROM runs WHERE {where} ORDER BY created DESC, rowid DESC LIMIT :limit"
        with self._open() as database:
            return database.execute(query, {**values, "limit": limit}).fetchall()

    # ------------------------------------------------------------ what can go wrong

    @contextlib.contextmanager
    def _leaving_out(self, run_id: str) -> Iterator[None]:
        """A row that cannot be read is told, and does not hide the others."""
        try:
            yield
        except (StoreError, *runs.INVALID) as problem:
            self.problems.append(f"run {run_id} was left out: {problem}")

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction: threads share none, and none is left open."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as database:
                with contextlib.suppress(sqlite3.OperationalError):  # network disks cannot; it works without
                    database.execute("PRAGMA journal_mode = WAL")
                with database:
                    yield database
        except sqlite3.IntegrityError:
            raise StoreError(f"{self.path} holds a run of this id already", "Give the run a new id") from None
        except sqlite3.Error as problem:
            raise self._explained(problem) from problem
        except OSError as problem:
            raise StoreError(*explain(problem, self.path)) from problem

    def _explained(self, problem: sqlite3.Error) -> StoreError:
        code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            moved = self._move_aside()
            return StoreError(
                f"the store of runs was damaged ({problem}), and is in {moved.name} now, beside {self.path}",
                "Repeat this: a new store starts. `sqlite3 FILE .recover` reads what is left of the old one",
            )
        what, remedy = {
            sqlite3.SQLITE_FULL: ("the disk is full", "Free some space, or set PERFKIT_DATA to another disk"),
            sqlite3.SQLITE_BUSY: ("another process holds it", "Wait until that has ended, then repeat this"),
        }.get(code, (str(problem), "Check its permissions, or set PERFKIT_DATA to another folder"))
        return StoreError(f"the store of runs {self.path} cannot be used: {what}", remedy)

    def _move_aside(self) -> Path:
        moved = self.path.with_name(f"{self.path.name}.damaged-{datetime.datetime.now():%Y%m%d-%H%M%S-%f}")
        for end in ("-wal", "-shm", ""):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self.path}{end}").rename(f"{moved}{end}")
        return moved
