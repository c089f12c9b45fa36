"""A whole ladder of stages in a notebook."""

from __future__ import annotations

import html
import threading
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets
from IPython.display import HTML

from perfkit.errors import PerfkitError
from perfkit.ladder.stages import Stage
from perfkit.notebook import layout
from perfkit.notebook.panel import Panel, refuse_object, stored_runs
from perfkit.program.recipe import Recipe
from perfkit.results.parity import Check
from perfkit.results.run import Run
from perfkit.results.store import RunStore
from perfkit.show import sentences
from perfkit.studies import engine
from perfkit.worker.messages import Description


class LadderPanel(Panel):
    """A ladder of stages on a workload.

    Args:
        stages: optimizations in their order; the whole default ladder if None.
        workload: a built-in one, or `package.module:name`; the preset's own if None.
        preset: `smoke`, `quick` or `paper`; what `PERFKIT_PRESET` says, or what suits the machine, if None.
        device: `cuda`, `mps` or `cpu`; the best there is if None.
        settings: switches set from the first stage on.
        options: the workload's constructor arguments.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    from_below = False
    """Whether the first stage is the default ladder below the others, not the plain loop."""

    def __init__(
        self,
        stages: Sequence[str] | None = None,
        workload: str | None = None,
        preset: str | None = None,
        device: str | None = None,
        settings: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        refuse_object(workload)
        self.plan = engine.plan(workload, preset, stages, settings, device, options, below=self.from_below)
        self._resolving = threading.Lock()
        self._stages: list[Stage] | None = None
        self._described: Description
        self._unreadable = ""
        self._report = layout.html_slot("pk-report")
        super().__init__(self._key())

    def _key(self) -> str:
        return f"{type(self).__name__} {self.plan.workload} {self.plan.stages}"

    def _below(self) -> list[widgets.Widget]:
        return [self._report]

    # ------------------------------------------------------------ measuring

    def _measure(self) -> list[Run]:
        self.runs, self._report.value = [], ""
        try:
            self.runs = engine.climb(self.plan, RunStore(), self._follow, self._job.cancelled)
            self._prove()
        finally:
            self._draw()
            self._offer_report()
        return self.runs

    def _keep(self, run: Run) -> None:
        self.runs = [*self.runs, run]
        self._draw()

    def _prove(self) -> None:
        """Checks, after measuring, whether what was measured still trains the same."""

    def _offer_report(self) -> None:
        """Links to the report; not while stages are measured, as its pictures are work for the processor."""
        measured = any(run.status == "ok" for run in self.runs)
        self._report.value = layout.report_link(self.runs) if measured else ""

    def _sentences(self, runs: Sequence[Run]) -> list[str]:
        first, *others = super()._sentences(runs)
        return others or [first]

    # ------------------------------------------------------------ what the workload offers, what is stored

    def _resolve(self) -> list[Stage]:
        """The stages as this machine would run them; none, and a message, if the workload cannot be read."""
        with self._resolving:
            if self._stages is None:
                try:
                    self._described, self._stages = engine.resolve(self.plan)
                except PerfkitError as problem:
                    self._stages, self._unreadable = [], str(problem)
                    self._status.end("not ready", self._unreadable)
                    return []
                self._resolved(self._stages)
        return self._stages

    def _resolved(self, stages: Sequence[Stage]) -> None:
        """Called once, when the stages are known."""

    def _read(self) -> None:
        if sessions := self._stored_sessions():
            self._recall(sessions)

    def _names(self) -> list[str]:
        """Names of the stages in stored runs."""
        return list(dict.fromkeys(["baseline", *self.plan.stages]))

    def _recipes(self) -> list[Recipe]:
        """What the stages would run on this machine."""
        return [stage.recipe for stage in self._resolve()]

    def _stored_sessions(self) -> list[list[Run]]:
        """Stored sessions of stages, preset and device like these, the newest first."""
        runs = stored_runs(self.plan.workload, 60)
        sessions = [
            [run for run in runs if run.session == session]
            for session in dict.fromkeys(run.session for run in reversed(runs))
        ]
        return [
            session for session in sessions
            if [run.stage for run in session] == self._names()
            and (session[0].preset, session[0].device) == (self.plan.preset.name, self.plan.device)
        ]  # fmt: skip

    def _recall(self, sessions: Sequence[list[Run]]) -> None:
        """Shows the newest of the stored sessions that has the same settings, options and recipes."""
        recipes = self._recipes()
        if not recipes:
            return
        options = self._described.options
        same = (s for s in sessions if s[0].options == options and self._ran(recipes, s))
        session = next(same, None)
        if session and not (self.runs or self._job.busy):
            self.runs = session
            self._draw()
            self._offer_report()
            when = session[0].created[:16].replace("T", " ")
            self._status.show(f"results of {when} UTC; Run measures again")

    def _ran(self, recipes: Sequence[Recipe], session: Sequence[Run]) -> bool:
        """Whether a stored session ran these recipes; after one that failed, stages stand on an earlier one.

        On a ladder the first stage decides how many compute threads of a CPU the loader workers displace.
        """
        for at, (run, recipe) in enumerate(zip(session, recipes, strict=False)):
            stored = {**Recipe().to_dict(), **run.recipe}
            if at and not self.plan.recipes:
                stored["cpu_threads"] = recipe.cpu_threads
            if stored != recipe.to_dict():
                return False
            if run.status == "failed":
                break
        return len(session) == len(recipes)

    # ------------------------------------------------------------ ordinary outputs

    def proof(self) -> HTML:
        """What proves that each switch of the last stage is in effect, and that it still trains the same."""
        run = self._results_or_error()[-1]
        if run.status != "ok":
            return HTML(f"<p>Nothing to prove: {html.escape(sentences.outcome(run))}</p>")
        rows = [[m.switch, "yes" if m.ok else "NO", m.evidence] for m in run.mechanism]
        rows += [[check.name, "yes" if check.ok else "NO", check.evidence] for check in self._checks()]
        return HTML(layout.html_table(("switch", "as set", "evidence"), rows))

    def _checks(self) -> list[Check]:
        return []
