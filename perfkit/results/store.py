"""Where runs are kept: an SQLite file that only grows, and recordings, which are files for others to open."""

from __future__ import annotations

import contextlib
import datetime
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from perfkit import machine
from perfkit.errors import InvalidValue, StoreError
from perfkit.results import run as runs
from perfkit.results.database import errors_in_words, is_sound, move_aside, opened
from perfkit.results.index import Entry, Index, Marks, entry
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
_Entries = list[Entry]


class History(NamedTuple):
    """Stored runs, newest first, without their measured series."""

    entries: _Entries
    marks: Mapping[str, Marks]
    """What people wrote beside them, by id."""
    missing: int
    """Further runs, whose lines are not derived yet."""


class RunStore:
    """The runs of this user. Any number of threads and processes may use one file at once.

    Args:
        path: of the SQLite file; the one in `machine.runs_folder()` if None. Made where it is missing.

    Raises:
        StoreError: the file cannot be made or read, is damaged, or is of a newer perfkit.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_path()
        self.index = Index(self.path.with_name(f"{self.path.stem}-history.sqlite"))
        self.problems: list[str] = []
        """What the last reading had to leave out."""
        with opened(self.path) as database:
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
        with opened(self.path) as database:
            database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*row, runs.encode(run)))
        with contextlib.suppress(StoreError, *runs.INVALID):  # a line that is missing is derived when read
            self.index.put([entry(run)])

    def delete(self, ids: Iterable[str]) -> _Runs:
        """Removes runs, all or none; returns them, so that `add` can bring them back.

        Raises:
            InvalidValue: one of them is not in the store.
            StoreError: one of them is damaged, or the file cannot be written.
        """
        removed = [self.get(run_id) for run_id in ids]
        with opened(self.path) as database:
            database.executemany("DELETE FROM runs WHERE id = ?", [(run.id,) for run in removed])
        with contextlib.suppress(StoreError):
            self.index.remove(run.id for run in removed)
        return removed

    def history(self, limit: int = 10_000, workload: str | None = None, derive: int = 10_000) -> History:
        """The lines of stored runs, and what people wrote beside them; `problems` says what is left out.

        Args:
            limit: at most this many.
            workload: as for `list`.
            derive: at most this many lines that the index lacks are derived, which takes milliseconds each.

        Raises:
            StoreError: the runs cannot be read.
        """
        self.problems = []
        known, marks = self._indexed()
        ids = [run_id for (run_id,) in self._rows("id", limit, workload=workload)]
        lacking = [run_id for run_id in ids if run_id not in known]
        derived = self._derived(lacking[:derive])
        with contextlib.suppress(StoreError):  # it works without, only slower
            self.index.put(derived.values())
        lines = {**known, **derived}
        entries = [lines[run_id] for run_id in ids if run_id in lines]
        return History(entries, marks, max(0, len(lacking) - derive))

    def _indexed(self) -> tuple[Mapping[str, Entry], Mapping[str, Marks]]:
        try:
            indexed = self.index.entries(), self.index.marks()
        except StoreError as problem:
            self.problems.append(f"names, stars and notes cannot be read: {problem}")
            return {}, {}
        self.problems += [self.index.problem] if self.index.problem else []
        return indexed

    def _derived(self, ids: Sequence[str]) -> Mapping[str, Entry]:
        lines = {}
        for run_id in ids:
            try:
                lines[run_id] = entry(self.get(run_id))
            except (StoreError, InvalidValue, ArithmeticError, *runs.INVALID) as problem:
                self.problems.append(f"run {run_id} was left out: {problem}")
        return lines

    def get(self, run_id: str) -> Run:
        """A run by its id, or by a prefix that no other id has.

        Raises:
            InvalidValue: no such run, or several.
            StoreError: the run is damaged, or of a newer perfkit.
        """
        with opened(self.path) as database:
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
        with opened(self.path) as database:
            query = "SELECT session FROM runs GROUP BY session ORDER BY max(created) DESC, max(rowid) DESC"
            return [session for (session,) in database.execute(query)]

    def _select(self, limit: int, **wanted: str | None) -> _Runs:
        self.problems = []
        selected: list[Run] = []
        for run_id, body in self._rows("id, body", None, **wanted):
            if len(selected) == limit:
                break
            try:
                selected.append(runs.decode(body))
            except StoreError as problem:
                self.problems.append(f"run {run_id} was left out: {problem}")
        return selected

    def _rows(self, columns: str, limit: int | None, **wanted: str | None) -> Iterator[Any]:
        """The newest rows of the runs with these values."""
        given = {name: value for name, value in wanted.items() if value is not None}
        terms = [_PART_OF if name == "workload" else f"{name} = :{name}" for name in given]
        where, most = " AND ".join(["1", *terms]), -1 if limit is None else limit
        query = f"SELECT {columns} FROM runs WHERE {where} ORDER BY created DESC, rowid DESC LIMIT {most:d}"
        with opened(self.path) as database:
            yield from database.execute(query, given)

    @staticmethod
    def repair(path: Path | None = None) -> Path | None:
        """Moves a damaged store aside, so that a new one can start; deletes nothing.

        Returns:
            Where the damaged file is now; None where there was nothing to repair.
        """
        path = path or default_path()
        if not path.exists() or is_sound(path, "runs"):
            return None
        return move_aside(path)


def default_path() -> Path:
    """The store of this user."""
    return machine.runs_folder() / "runs.sqlite"


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
        return f"Recorded {self.when[:10]} on {machine.describe(self.machine)}, by {self.command}{code}."


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
    text = recording_text(recorded)
    with errors_in_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        machine.write_atomically(path, text)


def recording_text(recorded: Sequence[Run]) -> bytes:
    """Runs as the text of a recording.

    Raises:
        InvalidValue: they were played from a recording, which has its own provenance.
    """
    if any(ORIGIN in run.facts for run in recorded):
        raise InvalidValue("these runs are of a recording already", "Copy its file instead")
    recording = Recording(provenance=provenance(), runs=list(recorded))
    return msgspec.json.format(msgspec.json.encode(recording), indent=1)


def load_recording(path: Path) -> Recording:
    """A recording from a file; nothing in it is executed, every field is checked.

    Raises:
        StoreError: there is no such file, it is too large or not a recording, or a newer perfkit wrote it.
    """
    with errors_in_words(path):
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
