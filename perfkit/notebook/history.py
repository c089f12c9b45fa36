"""The history: a table of the runs of a workload to sort, filter and tick; ticked runs are compared."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anywidget
import msgspec
import traitlets

from perfkit.errors import InvalidValue
from perfkit.results.run import AGAIN, Run
from perfkit.results.store import Entry, RunStore, entry
from perfkit.show import tables_history


class Grid(anywidget.AnyWidget):
    """The table in the page; its script is the file beside this one."""

    _esm = Path(__file__).with_name("history.js")
    rows: traitlets.List[Any] = traitlets.List().tag(sync=True)
    ticked: traitlets.List[str] = traitlets.List().tag(sync=True)
    """Ids of the runs to compare."""


class RunHistory:
    """The measured runs of a workload, or those of a recording.

    Args:
        on_tick: called after a person has ticked other runs.
    """

    def __init__(self, on_tick: Callable[[], None]) -> None:
        self.grid = Grid(_dom_classes=["pk-history"])
        self.recorded = False
        """Whether the runs are those of a recording, which is a file: nothing can be deleted."""
        self._on_tick = on_tick
        self._entries: dict[str, Entry] = {}
        self._runs: dict[str, Run] = {}
        """Runs that were read with their measured series."""
        self._deleted: list[tuple[Run, Entry]] = []
        self._quiet = False
        self.grid.observe(lambda _: self._quiet or self._on_tick(), "ticked")

    def show_recorded(self, runs: Sequence[Run]) -> None:
        """Shows the measured runs of a recording; all are ticked."""
        self.recorded = True
        self._runs = {run.id: run for run in runs if _is_shown(run)}
        self._entries = {run.id: entry(run) for run in self._runs.values()}
        self._draw(list(self._runs))

    def show_stored(self, workload: str) -> None:
        """Shows the measured runs of a workload; nothing is ticked.

        Raises:
            StoreError: the store cannot be read.
        """
        self.recorded, self._runs = False, {}
        entries = RunStore().history(workload=workload)
        self._entries = {line.id: line for line in reversed(entries) if _is_shown(line)}
        self._draw([])

    def add(self, runs: Sequence[Run]) -> None:
        """Adds runs that have just ended; they alone are ticked."""
        shown = [run for run in runs if _is_shown(run)]
        for run in shown:
            self._runs[run.id], self._entries[run.id] = run, entry(run)
        self._draw([run.id for run in shown])

    def ticked(self) -> list[Run]:
        """The ticked runs, oldest first.

        Raises:
            StoreError: a run cannot be read.
        """
        ids = [row.id for row in self._entries.values() if row.id in self.grid.ticked]
        return sorted(map(self._run, ids), key=lambda run: run.created)

    def delete(self) -> int:
        """Deletes the ticked runs; returns how many `undo` can bring back.

        Raises:
            InvalidValue: no run is ticked, or the runs are those of a recording.
            StoreError: the store cannot be written.
        """
        if self.recorded:
            raise InvalidValue("these runs are those of a recording, which is a file", "Nothing was deleted")
        if not self.grid.ticked:
            raise InvalidValue("no run is ticked", "Tick the runs to delete")
        removed = RunStore().delete(self.grid.ticked)
        self._deleted += [(run, self._entries.pop(run.id)) for run in removed]
        self._draw([])
        return len(self._deleted)

    def undo(self) -> None:
        """Brings back every run that was deleted here.

        Raises:
            StoreError: the store cannot be written.
        """
        store = RunStore()
        while self._deleted:
            run, line = self._deleted[-1]
            store.add(run, line.parent, line.guess)
            store.mark(run.id, name=line.name, note=line.note)
            self._deleted.pop()  # only once it is stored
            self._entries[run.id] = line
        self._draw(self.grid.ticked)

    def _run(self, run_id: str) -> Run:
        if run_id not in self._runs:
            self._runs[run_id] = RunStore().get(run_id)
        return self._runs[run_id]

    def _draw(self, ticked: Sequence[str]) -> None:
        self._quiet = True
        with self.grid.hold_sync():
            self.grid.rows = _rows(list(self._entries.values()))
            self.grid.ticked = list(ticked)
        self._quiet = False


def _rows(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    return [
        {
            **msgspec.to_builtins(line),
            "rate": f"{line.rate} disturbed" if line.disturbed else line.rate,
            "changes": ", ".join(tables_history.changes(entry.recipe, {})),
            "date": line.created[:16].replace("T", " "),
            "date_value": line.created,
        }
        for line, entry in zip(tables_history.lines(entries), entries, strict=True)
    ]


def _is_shown(run: Run | Entry) -> bool:
    """Failed runs have nothing to compare, and the baseline once more is no recipe of its own."""
    return run.status == "ok" and run.stage != AGAIN
