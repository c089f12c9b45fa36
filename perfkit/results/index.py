"""The history beside the runs: a line for each, quick to read, and the names, stars and notes people gave.

It is a file of its own, so that no damage to it reaches what was measured. The lines are derived from the
runs, and derived again where they are missing, invalid or computed by other code. Names, stars and notes are
only here.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from perfkit.errors import StoreError
from perfkit.results import pairing, run, simulated, stats
from perfkit.results.database import move_aside, opened
from perfkit.results.run import Run
from perfkit.results.simulated import Simulated
from perfkit.results.stats import Estimate, Ratio

_TABLES = """
CREATE TABLE IF NOT EXISTS entries (id TEXT PRIMARY KEY, derivation TEXT NOT NULL, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS marks (
    id TEXT PRIMARY KEY, name TEXT NOT NULL DEFAULT '', star INTEGER NOT NULL DEFAULT 0,
    note TEXT NOT NULL DEFAULT '', parent TEXT NOT NULL DEFAULT ''
);
"""
MAX_TEXT = 300
"""Characters of a name or note; the rest is cut off."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run without its measured series."""

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


class Marks(msgspec.Struct, frozen=True):
    """What people wrote beside a run."""

    name: str = ""
    """In the place of its title."""
    star: bool = False
    note: str = ""
    parent: str = ""
    """Id of the run whose switches it started from."""


def entry(of: Run) -> Entry:
    """The line of a run."""
    measured = of.status == "ok" and min(of.raw.block_samples_per_s, default=0.0) > 0
    rate = of.samples_per_s if measured else None
    before, baseline = of.pairing("previous"), of.pairing("baseline")
    compared = bool(measured and baseline and baseline.own_samples_per_s and baseline.other_samples_per_s)
    same = {name: getattr(of, name) for name in Entry.__struct_fields__ if name in Run.__struct_fields__}
    return Entry(
        **same, samples_per_s=rate if rate and math.isfinite(rate.value) else None,
        against_baseline=baseline.ratio if compared and baseline else None,
        disturbed=of.disturbed if measured else None, previous=before.against if before else "",
    )  # fmt: skip


class Index:
    """Lines and marks by the ids of runs. Any number of threads and processes may use one file at once.

    Args:
        path: of the SQLite file, made where it is missing; a damaged one is moved aside.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problem = ""
        """What was lost, if anything was."""

    def entries(self) -> Mapping[str, Entry]:
        """The lines that today's code derived, by id; what cannot be read is left out."""
        lines: dict[str, Entry] = {}
        query = "SELECT id, body FROM entries WHERE derivation = ?"
        for run_id, body in self._do(lambda rows: rows.execute(query, (_derivation(),)).fetchall()):
            with contextlib.suppress(msgspec.MsgspecError, TypeError):
                line = msgspec.json.decode(body, type=Entry)
                lines |= {line.id: line} if line.id == run_id else {}
        return lines

    def put(self, entries: Iterable[Entry]) -> None:
        """Keeps lines."""
        given = [(one.id, _derivation(), msgspec.json.encode(one)) for one in entries]
        self._do(lambda rows: rows.executemany("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", given))

    def remove(self, ids: Iterable[str]) -> None:
        """Forgets the lines of runs that are gone; their marks stay, should the runs come back."""
        given = [(run_id,) for run_id in ids]
        self._do(lambda rows: rows.executemany("DELETE FROM entries WHERE id = ?", given))

    def marks(self) -> Mapping[str, Marks]:
        """What people wrote, by the id of the run."""
        marks: dict[str, Marks] = {}
        query = "SELECT id, name, star, note, parent FROM marks"
        for run_id, *values in self._do(lambda rows: rows.execute(query).fetchall()):
            with contextlib.suppress(msgspec.ValidationError):
                named = dict(zip(Marks.__struct_fields__, values, strict=True))
                marks[run_id] = msgspec.convert(named, Marks, strict=False)
        return marks

    def mark(self, run_id: str, **values: str | bool) -> None:
        """Writes some of the fields of `Marks` beside a run, and leaves the others as they are.

        Raises:
            StoreError: the file cannot be written.
        """
        assert values.keys() <= set(Marks.__struct_fields__)  # they become part of the statement
        kept = {
            name: bool(value) if name == "star" else " ".join(str(value).split())[:MAX_TEXT]
            for name, value in values.items()
        }
        statement = (
            f"INSERT INTO marks (id, {', '.join(kept)}) VALUES (?{', ?' * len(kept)}) "
            f"ON CONFLICT (id) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in kept)}"
        )
        self._do(lambda rows: rows.execute(statement, (run_id, *kept.values())))

    def _do(self, act: Any) -> Any:
        """One transaction; in a new file where this one is damaged."""
        try:
            return self._done(act)
        except StoreError as problem:
            damaged = isinstance(problem.__cause__, sqlite3.DatabaseError) and "damaged" in problem.what
            if not damaged:
                raise
        moved = move_aside(self.path)
        self.problem = f"the history was damaged: its names, stars and notes are in {moved}; no run is lost"
        return self._done(act)

    def _done(self, act: Any) -> Any:
        with opened(self.path) as rows:
            rows.executescript(_TABLES)
            return act(rows)


@functools.cache
def _derivation() -> str:
    """Changes with the code that derives lines."""
    files = [str(module.__file__) for module in (run, stats, pairing, simulated)]
    text = b"".join(Path(file).read_bytes() for file in (*files, __file__))
    return hashlib.sha256(text).hexdigest()[:16]
