"""A ladder of stages, or some recipes: measured here, on a simulated GPU, or shown from a recording."""

from collections.abc import Mapping, Sequence
from typing import Any

import ipywidgets as widgets

from perfkit import registry
from perfkit.errors import Cancelled, InvalidValue, PerfkitError, RunFailed, one_of
from perfkit.machine import devices
from perfkit.notebook.panel import Panel
from perfkit.notebook.pieces import heading, row
from perfkit.notebook.shown import Recipes, Shown
from perfkit.recipe import Recipe, Value
from perfkit.results import Parity, Run
from perfkit.show import figures, sentences, tables
from perfkit.show.document import Bullets, Content, Notice, Section
from perfkit.show.style import Figure
from perfkit.studies import planning, staging
from perfkit.studies.climb import climb
from perfkit.studies.decisions import plan_key
from perfkit.studies.job import Job, Stopped
from perfkit.studies.sources import Plan, Progress


def use(device: str | None = None) -> None:
    """Where the panels that are made from now on run, if they name no device, until the kernel ends.

    It is named as for a `LadderPanel`; None is this machine's best device. A place that is not there raises a
    PerfkitError.
    """
    planning.plan(device=device)
    LadderPanel.session_device = device


class LadderPanel(Panel):
    """A ladder of stages on a workload, and a menu of the places where it can run, for this panel only.

    Args:
        stages: optimizations in their order; the whole default ladder if None.
        settings: switches set from the first stage on.
        device: `cuda`, `mps`, `cpu`, `sim:v100` …, or `recorded:NAME`; the session's choice if None.
        asked: `workload`, `preset` and `options`, as for `perfkit.plan`.

    Raises:
        PerfkitError: a name or value that is not allowed, or the panel cannot run there.
    """

    heading = "What does each stage add to the ones below it?"
    session_device: str | None = None  # what `use` was given last
    titles: Recipes | None = None  # recipes to measure in the place of stages

    def __init__(
        self,
        stages: Sequence[str] | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str | None = None,
        **asked: Any,
    ) -> None:
        device = device or self.session_device
        self._asked = {"stages": stages, **asked}
        self._settings = dict(settings or {})
        self._notices: list[str] = []  # what went wrong with the shown result without making it void
        key = (self._asked, self._settings, self.titles)
        self.plan = self._planned(device, self._settings)
        self.device = device or self.plan.subject.device
        """What the plan was made for, such as `recorded:NAME`."""
        places = {name: name for name in (self.device, self.session_device) if name} | _places()
        self._menu = widgets.Dropdown(
            description="Where",
            options=[(words, name) for name, words in places.items()],
            value=self.device,
            _dom_classes=["pk-where"],
        )
        self._menu.observe(self._chosen, "value")
        self.above = [row([heading(self.heading), self._menu], "pk-head"), *self.above]
        super().__init__(key)
        self._moved()

    def set(self, **switches: Value) -> None:
        """Sets switches from the first stage on."""
        self._move(self.device, {**self._settings, **switches})

    def choose(self, device: str) -> None:
        """Moves the panel; where it cannot run, and while it runs, it says why, and nothing changes."""
        if device == self.device:
            return
        self.status.attempt(lambda: self._move(device, self._settings))
        places = dict(self._menu.options)
        self._menu.unobserve(self._chosen, "value")  # other options choose the first of them
        if self.device not in places.values():
            self._menu.options = [*places.items(), (self.device, self.device)]
        self._menu.value = self.device
        self._menu.observe(self._chosen, "value")

    def _chosen(self, change: Any) -> None:
        self.choose(change["new"])

    def _move(self, device: str, settings: dict[str, Any]) -> None:
        self.require_rest()
        plan = self._planned(device, settings)
        is_same = device == self.device and _measures_the_same(plan, self.plan)
        self.device = device
        self._settings = settings
        if not is_same:
            self.plan = plan
            self._moved()

    def _planned(self, device: str | None, settings: Mapping[str, Any]) -> Plan:
        """The plan on a device. Raises a PerfkitError where there can be none."""
        plan = planning.plan(device=device, settings=settings, **self._asked)
        plain = plan.source().baseline()
        recipes = {title: plain.replace(**changes) for title, changes in (self.titles or {}).items()}
        return plan.trying(recipes=tuple(recipes.items()))

    def _moved(self) -> None:
        """Shows what was measured earlier for a plan that is new, if anything was."""
        self._more.add_class("pk-off")
        self._forget_problems()
        self._show_runs(self._earlier())
        if self.runs:
            when = self.runs[0].created[:16].replace("T", " ")
            self.status.say(f"measured earlier, at {when} UTC; Run measures again")
        self.show()

    def _forget_problems(self) -> None:
        """What went wrong with an earlier result says nothing of the next one."""
        self._notices.clear()
        self.store.problems.clear()
        self.store.lost.clear()

    def _earlier(self) -> Sequence[Run]:
        return self.store.remembered(plan_key(self.plan))

    def _measure(self, job: Job) -> None:
        self._climb(job, job.request)
        if not job.request.recorded:
            self.store.remember(plan_key(job.request), self.runs[0].session)
            try:
                self._steps(job.progress)
            except Cancelled:
                raise
            except (PerfkitError, OSError) as problem:  # the result is shown without it
                self._notices.append(f"The steps could not be drawn: {problem}")

    def _climb(self, job: Job, plan: Plan) -> None:
        """Measures a plan completely. Raises what went wrong, also in a run, and what was stopped."""
        self._show_runs(())
        self._forget_problems()
        earlier = job.before.runs if job.before else ()
        runs = climb(plan, self.store, job.progress, earlier)
        self._show_runs(runs)
        if plan.ladder.recipes or len(plan.ladder.stages) < 2:  # a longer ladder is built on its own verdicts
            job.can_continue = lambda: any(map(_is_open, runs))
        # Each reason once, with the first run that it ended.
        failed = {run.reason: run.title for run in reversed(runs) if run.status == "failed"}
        if failed:
            self._show_runs(earlier or runs)  # a failure adds no rounds to those that are there
            raise RunFailed("; ".join(f"{title} failed: {why}" for why, title in reversed(failed.items())))
        self._require_stored()
        if any(run.status == "cancelled" for run in runs):
            raise Stopped(runs)
        job.check()

    def sections(self) -> Sequence[Content]:
        if not self.runs:
            return tuple(Notice(words) for words in self.store.problems)
        picture = self._pictures() if any(run.status == "ok" for run in self.runs) else []
        details = [*self._evidence(), *tables.overview(self.runs)[:2]]
        notices = [*self.store.problems, *self._notices, *sentences.notices(self.runs)]
        return [*map(Notice, notices), *picture, *self._answers(), Section("Details", details, folded=True)]

    def _pictures(self) -> list[Content]:
        """Before above after: an addition's picture of the steps, else bars, and why."""
        bars = figures.headline(self.runs)
        try:
            steps = self._steps()
        except (PerfkitError, OSError) as problem:
            return [Notice(f"There is no picture of the steps: {problem}"), bars]
        return [steps._replace(title=bars.title) if steps else bars]

    def _steps(self, progress: Progress | None = None) -> Figure | None:
        """An addition's picture of one or two runs: measured if there is a progress, else what is known."""
        runs, _ = sentences.pair(self.runs)
        if not 1 <= len(runs) <= 2:
            return None
        plan = self.plan.on(code=runs[0].code)
        for reference in registry.table("PICTURES").values():
            figure: Figure | None = registry.load(reference)(runs, plan, progress)
            if figure:
                return figure
        return None

    def _answers(self) -> list[Content]:
        kept = [run.title for run in self.runs if run.decision and run.decision.kept]
        lines = [f"Kept: {', '.join(kept)}."] if kept else []
        others = [run for run in self.runs if run.status != "failed"]  # the panel's error tells of those
        return [tables.ladder(self.runs), Bullets([*lines, *sentences.verdicts(others)])]

    def _evidence(self) -> list[Content]:
        return tables.evidence(self.runs)

    def parts(self) -> Sequence[Content]:
        """Every table, and the figures `step_time` and `throughput`."""
        return tables.report(self.results())


def _measures_the_same(plan: Plan, other: Plan) -> bool:
    """Whether two plans for a place measure the same recipes; what the controls change is not looked at."""
    return plan.recorded == other.recorded and _recipes(plan) == _recipes(other)


def _recipes(plan: Plan) -> list[Recipe]:
    return [stage.recipe for stage in staging.all_stages(staging.described(plan.trying(changes={})))]


def proof(plan: Plan, title: str, recipe: Recipe, progress: Progress | None = None) -> Parity | None:
    """Whether a recipe trains as the plain program does; None where no addition can tell."""
    reference = registry.table("PROOFS").get("parity")
    return registry.load(reference)(plan, title, recipe, progress=progress) if reference else None


def _is_open(run: Run) -> bool:
    """Whether more rounds would decide what a run's comparison leaves open."""
    ratios = [run.speedup(pairing.role) for pairing in run.pairings if not run.is_again]
    return any(ratio is not None and ratio.verdict == "undecided" for ratio in ratios)


def _places() -> dict[str, str]:
    menu = {device: f"this machine ({device})" for device in (devices.check_device(None), "cpu")}
    for reference in registry.table("SOURCES").values():
        menu |= registry.load(reference).menu()
    return menu


class RecipePanel(LadderPanel):
    """Recipes by their titles, each compared with the first; it takes what a `LadderPanel` takes."""

    heading = "Which of these recipes is fastest?"

    def __init__(self, recipes: Recipes, **more: Any) -> None:
        self.titles = recipes
        super().__init__(["baseline"], **more)

    def __getitem__(self, title: str) -> Run:
        runs = {run.title: run for run in self.results() if run.status == "ok"}
        if title not in runs:
            raise one_of(title, list(runs), "measured recipe")
        return runs[title]

    def parity(self, title: str) -> Shown[Parity]:
        """Whether a recipe still trains the same."""
        run = self[title]
        found = proof(self.plan.on(code=run.code), title, Recipe.from_dict(run.recipe))
        if found is None:
            raise InvalidValue("the addition that checks it is missing", "Install all of perfkit")
        return Shown(found, tables.parity(found))
