"""A user's own script in a notebook: watched as it stands, switches set from outside, its edit."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.display import HTML

import perfkit
from perfkit import trace as traces
from perfkit.errors import InvalidValue
from perfkit.notebook import layout
from perfkit.notebook.controls import Controls
from perfkit.notebook.panel import Panel
from perfkit.notebook.shown import Shown
from perfkit.recipe import Recipe, Value
from perfkit.results.comparison import Comparison
from perfkit.results.run import Run
from perfkit.rules import why_not
from perfkit.scripts import patch_study as patching
from perfkit.scripts import study as scripts
from perfkit.scripts import tables as tables_script
from perfkit.scripts import watch_study as watching
from perfkit.scripts.launch import Launch
from perfkit.scripts.report import Watched
from perfkit.scripts.suggestion import Suggestion
from perfkit.show import document, units
from perfkit.show.html import fragment
from perfkit.studies import compare as comparing
from perfkit.trace.figures import interactive

if TYPE_CHECKING:
    from perfkit.scripts.patch import Patch  # libcst takes long to load

TOGGLES = (
    "workers", "prefetch_factor", "pin_memory", "non_blocking", "batch_size", "amp",
    "channels_last", "compile", "compile_mode", "optimizer_impl", "zero_grad_set_to_none", "fp32_precision",
    "cudnn_benchmark", "cpu_threads",
)  # fmt: skip
"""The switches that may be set from outside a script."""
_WATCHED_STEPS = {"smoke": 6}


class ScriptPanel(Panel):
    """Your own training script, unmodified: watch it, set switches from outside, compare, take the edit.

    Args:
        script: the file, also one of perfkit's own in `data/scripts`; a module with `module`, or an installed
            command such as `torchrun`.
        args: the script's own arguments.
        module: whether it is started as `python -m script`.
        folder: where it is started; the notebook's folder if None.
        preset: `smoke`, `quick` or `paper`: how large blocks are, and how long they are measured.

    Raises:
        InvalidValue: there is no such script, or no such preset.
    """

    text = "perfkit panel of a script: run this cell for the controls, or call .watch() or .run()"
    nothing = (
        "<p>Watch it, or set switches and press Run: it is measured as it is and with them, interleaved.</p>"
    )

    def __init__(
        self, script: str | Path, args: Sequence[object] = (), module: bool = False,
        folder: str | Path | None = None, preset: str | None = None,
    ) -> None:  # fmt: skip
        arguments = tuple(str(word) for word in args)
        where = Path(folder) if folder else None
        shipped = Path(perfkit.__file__).parents[1] / script
        if shipped.is_file() and not ((where or Path()) / script).exists():
            script = shipped
        self.launch = Launch(str(script), arguments, module, where)
        self.plan = scripts.script_plan(self.launch, preset)
        self.comparisons: list[Comparison] = []
        """What was compared, the newest last."""
        self.watched: Watched | None = None
        self._controls = Controls(
            TOGGLES, on_change=lambda recipe: self._status.show("press Run to measure"), base="The script"
        )
        title = layout.html_slot("pk-question", text=f"<h3>{html.escape(self.launch.describe())}</h3>")
        self._above = [title, self._controls.widget]
        about = "Some steps as they are: rate, waiting, profile, and what to try"
        edit = "The edit of your file that sets these switches"
        self._buttons = [
            layout.button("Watch", "pk-watch", about, lambda: self.watch(block=False)),
            layout.button("Patch", "pk-patch", edit, lambda: self.patch(block=False)),
        ]
        self._ideas = layout.row([], "pk-apply")
        self._history = layout.html_slot("pk-history")
        self._seen, self._edit = layout.html_slot("pk-profiled"), layout.html_slot("pk-diff")
        self._beside, self._below = [self._ideas, self._edit, self._history], [self._seen]
        super().__init__(f"Script {self.launch.describe()}")

    # ------------------------------------------------------------ controls

    def _read(self) -> None:
        """Nothing is started before a person asks for it: the controls are greyed by the first look."""
        self._status.show_read("ready; Watch shows what can be set in this script")

    @property
    def settings(self) -> dict[str, Value]:
        """The switches that are set: those that differ from the script's own."""
        return dict(self._controls.changes())

    def set(self, **settings: Value) -> None:
        """Sets switches, as the controls do.

        Raises:
            InvalidValue: an unknown switch or a value that is not allowed.
        """
        if unknown := set(settings) - set(TOGGLES):
            raise InvalidValue(
                f"'{unknown.pop()}' cannot be set from outside", f"Allowed: {', '.join(TOGGLES)}"
            )
        self._controls.show(self._controls.recipe.replace(**settings))

    # ------------------------------------------------------------ watching

    def watch(self, block: bool = True) -> None:
        """Watches some steps as they are: where their time goes, and what to try."""
        self._start(self._watch, block)

    def _watch(self) -> None:
        steps = _WATCHED_STEPS.get(self.plan.preset.name, 60)
        self.watched, _ = watching.watch(
            self.launch, steps, on_progress=self._status.progress, cancelled=self._job.cancelled
        )
        target = scripts.target(self.watched.script)
        self._controls.set_base(Recipe().replace(**target.own))
        self._controls.set_rule(lambda name, recipe: why_not(name, recipe, target))
        ideas = [one for one in self.watched.suggestions if one.state == "try"]
        self._ideas.children = [
            self._controls.offer(f"Try {one.title} ({_gain(one)})", one.settings, one.why) for one in ideas
        ]
        sections = tables_script.watched(self.watched)
        if self.watched.trace:
            recorded = traces.load(self.watched.trace)
            sections.append(interactive(traces.lanes(recorded, 0)))
        self._seen.value = fragment([document.Section("What watching it has shown", sections)])

    def report(self) -> Shown[Watched]:
        """What watching has shown, as ordinary tables.

        Raises:
            InvalidValue: it was not watched yet.
        """
        if self.watched is None:
            raise InvalidValue("the script was not watched yet", "Run the cell with .watch() first")
        return Shown(self.watched, tables_script.watched(self.watched))

    # ------------------------------------------------------------ comparing

    def _measure(self) -> list[Run]:
        settings = self.settings
        if not settings:
            raise InvalidValue("no switch is set", "Set one, or press Watch for what to try")
        title = ", ".join(f"{name}={value}" for name, value in settings.items()).lower()
        sides = comparing.Candidate("as it is"), comparing.Candidate(title, changes=settings)
        preset = self.plan.preset
        result = comparing.compare(
            *sides, self.plan, max(5.0, preset.budget_s), preset.precision, pairs=1, part=preset.part,
            on_progress=self._follow, cancelled=self._job.cancelled,
        )  # fmt: skip
        self.comparisons.append(result)
        self.runs = [result.a, result.b]
        self._draw()
        rows = [self._row(one) for one in reversed(self.comparisons)]
        history = document.Table(("set from outside", "× as it is", "verdict", "losses"), rows, "Compared")
        self._history.value = fragment([history])
        return self.runs

    def _keep(self, run: Run) -> None:
        """Both sides are shown together, once they are compared."""

    @staticmethod
    def _row(result: Comparison) -> list[str]:
        check = scripts.losses(result.a, result.b)
        return [result.b.title, units.ratio(result.ratio), result.ratio.verdict, check.evidence]

    def _notices(self, runs: Sequence[Run]) -> list[document.Content]:
        newest = self.comparisons[-1]
        sides = tables_script.sides(newest, scripts.losses(newest.a, newest.b))
        return [*super()._notices(runs), newest.describe(), *sides]

    # ------------------------------------------------------------ the edit

    def patch(self, block: bool = True) -> None:
        """Shows the edit of the script that sets these switches; its file is not changed."""
        self._start(self._make_patch, block)

    def _make_patch(self) -> None:
        if not self.settings:
            raise InvalidValue("no switch is set", "Set those that the script is to have by itself")
        self.edit: Patch = patching.make(
            self.launch, self.settings, on_progress=self._follow, cancelled=self._job.cancelled
        )
        file, where = self.launch.script, self.launch.where
        outside = file is not None and not file.resolve().is_relative_to(where)
        text = self.edit.diff(file.resolve().parent if file and outside else where)
        save = layout.download(text, "perfkit.diff", "text/x-diff").replace("Save perfkit.diff", "Save patch")
        refused = [f"{name}: {why}" for name, why in self.edit.refused.items()]
        told = [document.Bullets([*refused, *self.edit.notes])] if refused or self.edit.notes else []
        self._edit.value = f"<p>{save if text else 'No line of the script has to change.'}</p>" + fragment(
            [document.Code(text, "diff"), *told]
        )

    def diff(self) -> HTML:
        """The edit, as an ordinary output.

        Raises:
            InvalidValue: there is none yet.
        """
        if not self._edit.value:
            raise InvalidValue("there is no edit yet", "Run the cell with .patch() first")
        return HTML(self._edit.value)


def _gain(idea: Suggestion) -> str:
    return "only measuring tells" if idea.gain is None else f"{'≤ ' * idea.at_most}{units.times(idea.gain)}"


script_panel = ScriptPanel
