"""The history: a grid of the runs to sort, filter, tick, name and note; what is ticked is compared."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anywidget
import msgspec
import traitlets

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.ladder.stages import AGAIN
from perfkit.notebook import layout
from perfkit.results.run import Run
from perfkit.results.store import Entry, RunStore, entry
from perfkit.show import tables_history, units
from perfkit.show.document import Table
from perfkit.studies.compare import compare_stored

_FOLDER = Path(__file__).parent


class Grid(anywidget.AnyWidget):
    """The table in the page; its script and its style are the files beside this one."""

    _esm = _FOLDER / "history.js"
    _css = _FOLDER / "history.css"
    rows: traitlets.List[Any] = traitlets.List().tag(sync=True)
    ticked: traitlets.List[str] = traitlets.List().tag(sync=True)
    """Ids."""


class RunHistory:
    """Every measured run of a workload, or the runs of a recording, and what people wrote beside them.

    Args:
        on_tick: called when other runs are ticked, or those that are have other names.
        on_problem: called with what could not be done.
    """

    def __init__(self, on_tick: Callable[[], None], on_problem: Callable[[str], None]) -> None:
        self.on_tick, self._on_problem = on_tick, on_problem
        self._entries: dict[str, Entry] = {}
        self._runs: dict[str, Run] = {}
        """Those that were read."""
        self._recorded = False
        self._lock = threading.RLock()
        self._quiet = False
        self.grid = Grid(_dom_classes=["pk-history"])
        self.grid.observe(lambda _: self._quiet or self.on_tick(), "ticked")
        self.grid.on_msg(lambda _, content, __: self._act(content))
        self.delete = layout.button("Delete", "pk-delete", "Remove the ticked runs", self._delete_ticked)

    # ------------------------------------------------------------ which runs

    def show_recorded(self, runs: Sequence[Run]) -> None:
        """The measured runs of a recording, given oldest first; all of them are ticked."""
        shown = [run for run in runs if _is_shown(run)]
        self._recorded, self._runs = True, {run.id: run for run in shown}
        self._entries = {run.id: entry(run) for run in shown}
        self._draw(list(self._runs))

    def show_stored(self, workload: str, tick: Callable[[Entry], bool]) -> None:
        """The measured runs of a workload; those of the newest session that suit `tick` are ticked."""
        stored = self._asked(lambda store: store.history(workload=workload)) or []
        self._recorded, self._runs = False, {}
        self._entries = {line.id: line for line in reversed(stored) if _is_shown(line)}
        session = next((line.session for line in self.entries if tick(line)), None)
        self._draw([line.id for line in self.entries if line.session == session and tick(line)])

    def keep(self, run: Run, parent: str) -> None:
        """A run that has just ended, and the id of the one whose switches it started from; it is ticked."""
        if not _is_shown(run):
            return
        with self._lock:
            self._runs[run.id], self._entries[run.id] = run, entry(run)
        if parent and parent != run.id:
            self._mark(run.id, parent=parent)
        same = [one for one in self.grid.ticked if self._entries[one].session == run.session]
        self._draw([*(one for one in same if one != run.id), run.id])

    @property
    def entries(self) -> list[Entry]:
        """Of every run, the newest first; of one time, the one that came last."""
        return sorted(self._entries.values(), key=lambda one: one.created)[::-1]

    def name(self, run_id: str) -> str:
        """What a run is called."""
        return tables_history.name(self._entries[run_id])

    def runs(self) -> list[Run]:
        """Those that were measured or ticked here, oldest first, by the names that people gave them."""
        return self._named([self._runs[one.id] for one in self.entries if one.id in self._runs])

    def ticked(self) -> list[Run]:
        """The runs that are ticked, oldest first, by the names that people gave them."""
        wanted = set(self.grid.ticked)
        return self._named([run for one in self.entries if one.id in wanted and (run := self.run(one.id))])

    def run(self, run_id: str) -> Run | None:
        """A run with its measured series; None, and a message, where it cannot be read."""
        if run_id not in self._runs and (run := self._asked(lambda store: store.get(run_id))):
            self._runs[run_id] = run
        return self._runs.get(run_id)

    def _named(self, newest_first: Sequence[Run]) -> list[Run]:
        return [msgspec.structs.replace(run, title=self.name(run.id)) for run in reversed(newest_first)]

    def _draw(self, ticked: Sequence[str] | None = None) -> None:
        """Shows every line; where `ticked` is given, what is compared is drawn again too."""
        with self._lock:
            rows = tables_history.lines(self.entries)
            self._quiet = True
            with self.grid.hold_sync():
                self.grid.rows = msgspec.to_builtins(rows)
                self.grid.ticked = self.grid.ticked if ticked is None else list(ticked)
            self._quiet = False
        if ticked is not None:
            self.on_tick()

    # ------------------------------------------------------------ what is done with them

    def _act(self, content: Mapping[str, Any]) -> None:
        """Something was done in the page."""
        act, run_id, value = content.get("do"), str(content.get("id")), content.get("value", "")
        if run_id not in self._entries:
            return
        if act == "delete":
            self._delete([run_id])
        elif act in ("name", "note"):
            self._mark(run_id, **{act: value})
            self._draw(self.grid.ticked if act == "name" and run_id in self.grid.ticked else None)

    def _mark(self, run_id: str, **values: Any) -> None:
        if not self._recorded:
            self._asked(lambda store: store.mark(run_id, **values))
        self._entries[run_id] = msgspec.structs.replace(self._entries[run_id], **values)

    def _delete_ticked(self) -> None:
        if not self.grid.ticked:
            self._on_problem("no run is ticked. Tick those to delete")
        self._delete(self.grid.ticked)

    def _delete(self, ids: Sequence[str]) -> None:
        if self._recorded:
            self._on_problem("these runs are of a recording, which is a file: nothing was deleted")
            return
        if removed := self._asked(lambda store: store.delete(ids)):
            with self._lock:
                for run in removed:
                    del self._entries[run.id]
                    self._runs.pop(run.id, None)
            self._draw([one for one in self.grid.ticked if one in self._entries])

    def _asked(self, act: Callable[[RunStore], Any]) -> Any:
        """What the store answers; None, and a message, where it cannot."""
        try:
            return act(RunStore())
        except PerfkitError as problem:
            self._on_problem(str(problem))
            return None


def compared(runs: Sequence[Run]) -> Table:
    """Every run beside the first one: how many times as fast, and what differs in its recipe."""
    first, *others = runs
    rows = []
    for run in others:
        try:
            ratio = compare_stored(first, run).ratio
            text = f"{units.ratio(ratio)} {ratio.verdict}"
        except InvalidValue as problem:
            text = f"{units.NOT_AVAILABLE}: {problem.what}"
        differs = tables_history.changes(run.recipe, first.recipe)
        rows.append((run.title, text, ", ".join(differs) or "no switch"))
    return Table(("run", f"against {first.title}", "what differs"), rows, "Compared")


def _is_shown(run: Run | Entry) -> bool:
    """Failed runs have nothing to compare, and the baseline once more is no recipe of its own."""
    return run.status == "ok" and run.stage != AGAIN
