"""The store of runs, decisions and the A/A noise, in SQLite, for any number of threads and processes.

The noise is how much a recipe differs from itself in another process.
"""

import contextlib
import sqlite3
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from perfkit import lookup, machine
from perfkit.errors import InvalidValue, StoreError, what_and_remedy
from perfkit.results import stats
from perfkit.results.documents import read
from perfkit.results.parity import Parity
from perfkit.results.run import Run
from perfkit.results.schema import Decision
from perfkit.results.stats import AAPair, Spread

_SQL = lookup.toml("perfkit.results", "store")
_VERSION = 4  # of the tables, in `PRAGMA user_version`; a file of version 1 has 0 there


class StageDecision(NamedTuple):
    """The decision on a stage."""

    decision: Decision
    settings: dict[str, Any]
    """The switches that later stages start from: as measured, or as before it if the stage was dropped."""
    run: Run


def keep(store: "RunStore | None", *runs: Run) -> None:
    """Stores runs if there is a store. If writing one fails, `lost` says so, and it can still be shown."""
    if store is None:
        return
    for run in runs:
        try:
            store.add(run)
        except StoreError as problem:
            store.lost.append(f"{run.title or run.stage} was measured, but not stored: {problem}")


@contextlib.contextmanager
def warning_store() -> "Iterator[RunStore]":
    """A store for callers that only return a result. At the end it warns of what could not be stored."""
    store = RunStore()
    try:
        yield store
    finally:
        for problem in store.lost:
            warnings.warn(problem, stacklevel=3)


class RunStore:
    """The runs of this user, in an SQLite file that is created if it is missing.

    It may hold runs of several machines. Noise, answers and decisions are those of this one. A `StoreError`
    is raised if the file cannot be read or written.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or machine.data_folder() / "runs" / "runs.sqlite"
        self.problems: list[str] = []
        """Why runs were left out when it was read, each reason once. The reader may clear it."""
        self.lost: list[str] = []  # what could not be written, with the reason
        with self._open() as database:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version > _VERSION:
                what = f"the store of runs {self.path} is of a later version of perfkit"
                raise StoreError(what, "Update perfkit, or set PERFKIT_DATA to a different folder")
            if version < _VERSION:
                statements = _SQL["from_older"] + _SQL["tables"]
                database.executescript(f"{statements}PRAGMA user_version = {_VERSION};")

    @property
    def machine_id(self) -> str:
        """The machine whose noise, answers and decisions are read and written."""
        return str(machine.facts()["id"])

    def add(self, run: Run) -> None:
        """Stores a run, completely or not at all; a `StoreError` if there is one with this id already."""
        values = (run.id, run.created, run.session, run.workload, msgspec.json.encode(run))
        self._do("INSERT INTO runs (id, created, session, workload, body) VALUES (?, ?, ?, ?, ?)", values)

    def mark(self, run_id: str, guess: float | None) -> None:
        """Stores the speed-up that the user predicts for a run; None leaves an earlier guess unchanged."""
        self._do("UPDATE runs SET guess = ifnull(?, guess) WHERE id = ?", (guess, run_id))

    def delete(self, ids: Iterable[str]) -> None:
        """Marks runs as deleted, all or none; `undelete` brings them back."""
        rows = [(self.get(run_id).id,) for run_id in ids]
        with self._open() as database:
            database.executemany("UPDATE runs SET deleted = 1 WHERE id = ?", rows)

    def undelete(self) -> None:
        """Brings back every deleted run, with its guess and decision."""
        self._do("UPDATE runs SET deleted = 0")

    def history(self, limit: int = 10_000, workload: str | None = None) -> list[Run]:
        """Stored runs of a workload (all if None), newest first; `problems` says what is left out."""
        return self._read("workload = ?1", workload, limit)

    def runs(self, session: str | None = None) -> list[Run]:
        """The runs of a session, or of all, newest first; `problems` says what is left out."""
        return self._read("session = ?1", session)

    def get(self, run_id: str) -> Run:
        """A run by its id, or by a prefix that no other id has; an `InvalidValue` if there is none."""
        query = "SELECT id, body FROM runs WHERE NOT deleted AND substr(id, 1, length(?1)) = ?1 ORDER BY id"
        matches = dict(self._do(query, (run_id,)))
        if run_id in matches or len(matches) == 1:
            return read(matches.get(run_id) or next(iter(matches.values())), Run, f"run {run_id}")
        if not matches:
            raise InvalidValue(f"no run '{run_id}' in {self.path}", "`perfkit runs` lists them")
        examples = ", ".join(list(matches)[:5])
        raise InvalidValue(f"{len(matches)} runs begin with '{run_id}'", f"Give more of its id: {examples} …")

    def guess(self, run_id: str) -> float | None:
        rows = self._do("SELECT guess FROM runs WHERE id = ?", (run_id,))
        return rows[0][0] if rows else None

    def prove(self, run_id: str, parity: Parity) -> None:
        """Stores whether a run trains the same, replacing an earlier check."""
        self._do("REPLACE INTO proofs (run, body) VALUES (?, ?)", (run_id, msgspec.json.encode(parity)))

    def proof(self, run_id: str) -> Parity | None:
        for (body,) in self._do("SELECT body FROM proofs WHERE run = ?", (run_id,)):
            try:
                return read(body, Parity, f"the proof of run {run_id}")
            except StoreError as problem:
                self._leave_out(f"left out: {problem}")
        return None

    def remember(self, plan_key: str, session: str) -> None:
        """Stores that a session answers a plan on this machine, replacing an earlier answer."""
        statement = "REPLACE INTO answers (machine, question, session) VALUES (?, ?, ?)"
        self._do(statement, (self.machine_id, plan_key, session))

    def remembered(self, plan_key: str) -> list[Run]:
        """The runs of the newest session that answers a plan on this machine, in their order.

        The list is empty if no session does, or if a run of it was deleted or cannot be read. In these cases
        `problems` has the reason.
        """
        query = "SELECT session FROM answers WHERE machine = ? AND question = ?"
        rows = self._do(query, (self.machine_id, plan_key))
        if not rows:
            return []
        (session,) = rows[0]
        marks = self._do("SELECT deleted FROM runs WHERE session = ?", (session,))
        deleted = sum(mark for (mark,) in marks)
        if deleted:
            what = f"{deleted} of the runs that were measured earlier for this are deleted"
            self._leave_out(f"{what}. Undo delete, in the Workbench, brings them back")
            return []
        runs = self.runs(session=session)
        return runs[::-1] if len(runs) == len(marks) else []

    def decide(self, ladder_key: str, run: Run, decision: Decision, settings: Mapping[str, Any]) -> None:
        """Stores a decision on the stage of a run, replacing an earlier one."""
        values = (decision.kept, decision.by, decision.why, msgspec.json.encode(settings).decode())
        statement = "REPLACE INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        self._do(statement, (self.machine_id, ladder_key, run.stage, run.id, *values))

    def decisions(self, ladder_key: str) -> dict[str, StageDecision]:
        """The newest decision on each stage of a ladder, oldest first, unless its run was deleted."""
        decided: dict[str, StageDecision] = {}
        for stage, kept, by, why, settings, body in self._do(_SQL["decided"], (self.machine_id, ladder_key)):
            try:
                run = read(body, Run, f"the run of {stage}")
                switches = msgspec.json.decode(settings, type=dict[str, Any])
            except (StoreError, ValueError) as problem:
                self._leave_out(f"left out: {problem}")
                continue
            decided[stage] = StageDecision(Decision(bool(kept), by, why), switches, run)
        return decided

    def spread(self, device: str, allocator: str = "default", workers: bool = False) -> Spread:
        """How much equal processes differ on this machine, by device, allocator and whether workers load."""
        rows = self._do(_SQL["newest_pairs"], (self.machine_id, device, allocator, workers))
        return stats.spread_of([AAPair(*row) for row in rows], stats.usual_spread(device, workers))

    def add_aa_pairs(self, device: str, allocator: str, workers: bool, pairs: Sequence[AAPair]) -> None:
        """Stores further pairs of equal processes if it can; later verdicts take them into account."""
        rows = [(self.machine_id, device, allocator, workers, *pair) for pair in pairs]
        try:
            with self._open() as database:
                database.executemany("INSERT INTO aa_pairs VALUES (?, ?, ?, ?, ?, ?)", rows)
        except StoreError as problem:
            self.lost.append(f"the A/A noise was measured, but not stored: {problem}")

    def _read(self, condition: str, value: str | None, limit: int = -1) -> list[Run]:
        """Runs, newest first. A run that cannot be read goes to `problems`, and does not hide the others."""
        runs = []
        for run_id, body in self._do(_SQL["read"].format(condition), (value, limit)):
            try:
                runs.append(read(body, Run, f"run {run_id}"))
            except StoreError as problem:
                self._leave_out(f"left out: {problem}")
        return runs

    def _leave_out(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _do(self, statement: str, values: Any = ()) -> list[Any]:
        with self._open() as database:
            return database.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction. Threads do not share it, and it is closed at the end."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=30)) as database:
                # No write-ahead log: with it, two hosts that share a disk would corrupt the file.
                if database.execute("PRAGMA journal_mode").fetchone() == ("wal",):
                    database.execute("PRAGMA journal_mode = DELETE")
                with database:
                    yield database
        except sqlite3.Error as problem:
            what = f"the store of runs {self.path} cannot be used: {problem}"
            remedy = "Free its disk, check its permissions; if it is damaged, move it away and run again"
            raise StoreError(what, remedy) from problem
        except OSError as problem:
            what, _ = what_and_remedy(problem, self.path)
            raise StoreError(what, "Free its disk, or set PERFKIT_DATA to a different folder") from problem
