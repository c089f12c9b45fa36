"""A stage, or a whole ladder, in a notebook: ask, predict, run, look.

`run()` blocks and shows its progress in one line, so that a notebook also runs from top to bottom without a
click. Results come as ordinary HTML and PNG outputs, which a reader without a kernel sees too.
"""

from __future__ import annotations

import html
import threading
from collections.abc import Sequence
from typing import Any

from IPython.display import HTML, Image, Markdown, display

from perfkit import environment, experiment, ladder, views
from perfkit.errors import InvalidValue, PerfkitError
from perfkit.runs import Run
from perfkit.store import RunStore
from perfkit.views import table, words


class LadderPanel:
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

    below = False

    def __init__(
        self,
        stages: Sequence[str] | None = None,
        workload: str | None = None,
        preset: str | None = None,
        device: str | None = None,
        settings: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.plan = experiment.plan(workload, preset, stages, settings, device, options, below=self.below)
        self.runs: list[Run] = []
        self.error = ""
        self._cancelled = threading.Event()

    def __repr__(self) -> str:
        return f"perfkit panel ({', '.join(self.plan.stages)}): call .run() to measure"

    def run(self) -> None:
        """Measures, blocking, with one line of progress; the kernel's stop button ends it.

        What goes wrong is shown as one message; the notebook stays usable.
        """
        self.runs, self.error = [], ""
        line = _Line()
        try:
            self.runs = experiment.climb(self.plan, RunStore(), line.progress, self._cancelled)
        except PerfkitError as problem:
            self.error = str(problem)
        except KeyboardInterrupt:
            self.runs = line.finished
            self.error = "stopped; what was finished is kept"
        line.end(self.error)
        for run in self.runs:
            if run.status in ("failed", "cancelled"):
                display(Markdown(f"**{run.title}** {run.status}: {html.escape(run.reason)}"))

    def table(self) -> HTML:
        """The results, one row a stage."""
        return HTML(_html_table(table.COLUMNS, table.table(self._measured())))

    def plot(self, view: str = "throughput", dark: bool = False, large: bool = False) -> Image:
        """One picture of the results, as a PNG with a text for those who do not see it.

        Raises:
            InvalidValue: no such view, or nothing was measured yet.
        """
        figure = views.figure(view, self._measured(), dark, large)
        return Image(data=views.style.to_png(figure), alt=views.describe(view, self.runs))

    def verdict(self) -> Markdown:
        """Did it help here, and why: computed from the results."""
        runs = {run.id: run for run in self._measured()}
        said = []
        for run in self.runs[1:] or self.runs:
            before = next((runs[p.against] for p in run.pairings if p.role == "previous"), None)
            known = ladder.OPTIMIZATIONS.get(run.stage)
            said.append(f"- {words.verdict_sentence(run, before, known.attacks if known else 'none')}")
        return Markdown("\n".join(said))

    def proof(self) -> HTML:
        """What proves that each switch of the last stage acts."""
        run = self._measured()[-1]
        if run.status != "ok":
            return HTML(f"<p>Nothing to prove: {html.escape(words.outcome(run))}</p>")
        rows = [[m.switch, "yes" if m.ok else "NO", m.evidence] for m in run.mechanism]
        return HTML(_html_table(("switch", "as set", "proven by"), rows))

    def _measured(self) -> list[Run]:
        if not self.runs:
            raise InvalidValue("nothing was measured yet", "Run the cell with .run() first")
        return self.runs


class StagePanel(LadderPanel):
    """One optimization, on top of the default ladder below it: before, and after.

    Args:
        stage: the optimization.
        more: as for `LadderPanel`.

    Raises:
        InvalidValue: a name or value that is not allowed.
    """

    below = True

    def __init__(self, stage: str, **more: Any) -> None:
        super().__init__([stage], **more)
        self.optimization = ladder.optimization(stage)
        self.prediction: float | None = None

    def question(self) -> Markdown:
        """What this stage asks, and what the articles measured."""
        published = self.optimization.published
        theirs = f"\n\n*The article measured, on its machine: {published}.*" if published else ""
        return Markdown(f"**{self.optimization.question}**{theirs}")

    def card(self) -> Markdown:
        """The stage's card: how it works, when it applies, when it does not help."""
        return Markdown(self.optimization.card())

    def diff(self) -> Markdown:
        """What the stage changes in the training script: a diff of the two real scripts."""
        try:
            return Markdown(f"```diff\n{experiment.stage_diff(self.plan)}```")
        except PerfkitError as problem:
            return Markdown(f"No diff: {html.escape(str(problem))}")

    def predict(self, times: float) -> None:
        """Your guess, before you run: how many times as fast will it be? Below 1 is slower.

        Raises:
            InvalidValue: not a number above 0.
        """
        if not times > 0:
            raise InvalidValue(f"you predicted {times} times as fast", "Give a number above 0")
        self.prediction = times

    def score(self) -> Markdown:
        """Your prediction beside what was measured."""
        ratio = self._measured()[-1].speedup("previous")
        if ratio is None:
            return Markdown(f"Not measured here: {html.escape(self.runs[-1].reason)}")
        measured = f"measured: {ratio.ratio:.2f}× ({ratio.low:.2f}–{ratio.high:.2f}), {ratio.verdict}"
        if self.prediction is None:
            return Markdown(f"No prediction was made; {measured}.")
        inside = ratio.low <= self.prediction <= ratio.high
        off = max(self.prediction / ratio.ratio, ratio.ratio / self.prediction)
        judged = "inside the interval" if inside else f"off by a factor of {off:.2f}"
        return Markdown(f"You predicted {self.prediction:.2f}×; {measured}. Your guess was {judged}.")


def machine() -> Markdown:
    """This machine in one line, and what of the workbook will be real on it."""
    return Markdown(html.escape(environment.describe_machine(environment.machine())))


def doctor() -> HTML:
    """The machine check, as a table."""
    rows = [[check.status, check.name, check.detail, check.remedy] for check in environment.doctor()]
    return HTML(_html_table(("", "what", "found", "what to do"), rows))


def _html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class _Line:
    """One line of progress that is replaced in place, and gone at the end."""

    def __init__(self) -> None:
        self.finished: list[Run] = []
        self._shown = ""
        self._handle = display(Markdown("starting …"), display_id=True)

    def progress(self, progress: experiment.Progress) -> None:
        """Shows a step of progress."""
        if progress.run:
            self.finished.append(progress.run)
        done = round(20 * progress.fraction)
        text = f"`{'█' * done}{'░' * (20 - done)}` {progress.stage}: {progress.phase}"
        if text != self._shown:
            self._shown = text
            self._handle.update(Markdown(text))

    def end(self, error: str) -> None:
        """Leaves the error, or a word that it is done."""
        self._handle.update(Markdown(f"**{html.escape(error)}**" if error else "done"))
