"""Where runs, and the A/A noise of this machine, are kept: SQLite, for any number of threads and processes.

The noise is how far a recipe differs from itself in another process: every ladder measures its baseline in
two processes, and `perfkit doctor --noise` measures more such pairs.
"""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from perfkit import machine
from perfkit.errors import InvalidValue, StoreError, explain
from perfkit.results import stats
from perfkit.results.run import Run, read
from perfkit.results.stats import AAPair

_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    id TEXT PRIMARY KEY, created TEXT NOT NULL, session TEXT NOT NULL, workload TEXT NOT NULL,
    name TEXT NOT NULL DEFAULT '', note TEXT NOT NULL DEFAULT '', guess REAL, body BLOB NOT NULL,
    deleted INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS asked (question TEXT PRIMARY KEY, session TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS noise (device TEXT NOT NULL, log_ratio REAL NOT NULL, scatter REAL NOT NULL);
"""
# Any dotted part of a reference names its workload: `photos` is `perfkit.workloads.photos:Photos`.
_OF_WORKLOAD = "instr('.' || replace(workload, ':', '.') || '.', '.' || replace(?1, ':', '.') || '.')"
_READ = """
SELECT id, body, name, note, guess FROM runs WHERE NOT deleted AND (?1 IS NULL OR {})
ORDER BY created DESC, rowid DESC LIMIT ?2
"""
_NEWEST_PAIRS = """
SELECT log_ratio, scatter FROM noise WHERE device = ? ORDER BY rowid DESC LIMIT 30
"""  # since a machine changes
_NOISE_OF_SCRIPTS = 0.05
"""Equal processes of a script differed by 2.1% (standard deviation, 18 pairs of three small scripts that are
watched, two cores, torch 2.15), two of them by more than 4.5%."""


class Stored(NamedTuple):
    """A run of the store, and what the user wrote beside it."""

    run: Run
    name: str = ""
    """Shown in place of the title."""
    note: str = ""
    guess: float | None = None
    """The speed-up that the user predicted."""


class RunStore:
    """The runs of this user, in an SQLite file that is created where it is missing.

    Everything raises a `StoreError` if the file cannot be read or written, or is damaged.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or machine.data_folder() / "runs" / "runs.sqlite"
        self.problems: list[str] = []
        """What the last reading had to leave out."""
        with self._open() as database:
            database.executescript(_TABLES)

    def add(self, run: Run) -> None:
        """Keeps a run, completely or not at all; a `StoreError` if one with this id is there already."""
        values = (run.id, run.created, run.session, run.workload, msgspec.json.encode(run))
        self._do("INSERT INTO runs (id, created, session, workload, body) VALUES (?, ?, ?, ?, ?)", values)

    def mark(
        self, run_id: str, name: str | None = None, note: str | None = None, guess: float | None = None
    ) -> None:
        """Writes what is not None beside a run; an empty text removes it."""
        texts = [text and " ".join(text.split())[:300] for text in (name, note)]
        marks = ", ".join(f"{column} = ifnull(?, {column})" for column in ("name", "note", "guess"))
        self._do(f"UPDATE runs SET {marks} WHERE id = ?", (*texts, guess, run_id))

    def delete(self, ids: Iterable[str]) -> None:
        """Puts runs aside, all or none; `undelete` brings them back."""
        known = [(self.get(run_id).id,) for run_id in ids]
        with self._open() as database:
            database.executemany("UPDATE runs SET deleted = 1 WHERE id = ?", known)

    def undelete(self) -> None:
        """Brings back every deleted run, with its name, note and guess."""
        self._do("UPDATE runs SET deleted = 0")

    def history(self, limit: int = 10_000, workload: str | None = None) -> list[Stored]:
        """Stored runs, newest first; `problems` says what is left out.

        With `workload`, its own only: by its reference, or any part of that between dots (`photos`).
        """
        return self._read(_OF_WORKLOAD, workload, limit)

    def runs(self, session: str | None = None) -> list[Run]:
        """The runs of a session, or of all, newest first; `problems` says what is left out."""
        return [each.run for each in self._read("session = ?1", session)]

    def get(self, run_id: str) -> Run:
        """A run by its id, or by a prefix that no other id has; an `InvalidValue` where there is none."""
        query = "SELECT id, body FROM runs WHERE NOT deleted AND substr(id, 1, length(?1)) = ?1 ORDER BY id"
        matches = dict(self._do(query, (run_id,)))
        if run_id in matches or len(matches) == 1:
            return read(matches.get(run_id) or next(iter(matches.values())), Run, f"run {run_id}")
        if not matches:
            raise InvalidValue(f"no run '{run_id}' in {self.path}", "`perfkit runs` lists them")
        some = ", ".join([*matches][:5])
        raise InvalidValue(f"{len(matches)} runs begin with '{run_id}'", f"Give more of its id: {some} …")

    def guess(self, run_id: str) -> float | None:
        """The speed-up that the user predicted for a run; None without a guess."""
        rows = self._do("SELECT guess FROM runs WHERE id = ?", (run_id,))
        return rows[0][0] if rows else None

    def remember(self, question: str, session: str) -> None:
        """Notes that a session answers a question, in the place of an older one."""
        self._do("REPLACE INTO asked (question, session) VALUES (?, ?)", (question, session))

    def remembered(self, question: str) -> list[Run]:
        """The runs of the newest session that answers a question, in their order; none if there is none."""
        rows = self._do("SELECT session FROM asked WHERE question = ?", (question,))
        return [run for (session,) in rows for run in reversed(self.runs(session=session))]

    def noise(self, device: str) -> float | None:
        """The A/A noise of a device as a fraction; None where no pair was measured here."""
        pairs = [AAPair(*row) for row in self._do(_NEWEST_PAIRS, (device,))]
        return stats.aa_noise_bound(pairs) if pairs else None

    def expected_noise(self, device: str, script: bool = False) -> float | None:
        """The noise that verdicts on a device take into account.

        On a CPU where no pair was measured, it is the noise of other machines. For a user's script, whose
        pairs no ladder measures, it is never less than that of other scripts.
        """
        noise, least = self.noise(device), _NOISE_OF_SCRIPTS if script else 0.0
        if device != "cpu":
            return noise
        return max(least, stats.aa_noise_bound(()) if noise is None else noise)

    def add_noise(self, device: str, pairs: Sequence[AAPair]) -> None:
        """Keeps further pairs of a device; all later verdicts take them into account."""
        with self._open() as database:
            database.executemany("INSERT INTO noise VALUES (?, ?, ?)", [(device, *pair) for pair in pairs])

    def _read(self, condition: str, value: str | None, limit: int = -1) -> list[Stored]:
        """The rows, newest first; one that cannot be read is told, and does not hide the others."""
        self.problems, rows = [], []
        for run_id, body, *marks in self._do(_READ.format(condition), (value, limit)):
            try:
                rows.append(Stored(read(body, Run, f"run {run_id}"), *marks))
            except StoreError as problem:
                self.problems.append(f"left out: {problem}")
        return rows

    def _do(self, statement: str, values: Any = ()) -> list[Any]:
        with self._open() as database:
            return database.execute(statement, values).fetchall()

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
        except sqlite3.Error as problem:
            what = f"the store of runs {self.path} cannot be used: {problem}"
            remedy = "Free its disk, check its permissions; if it is damaged, move it away: a new one starts"
            raise StoreError(what, remedy) from problem
        except OSError as problem:
            raise StoreError(*explain(problem, self.path)) from problem
