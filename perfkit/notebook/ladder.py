"""A ladder of stages, or some recipes: measured here, on a simulated GPU, or shown from a recording."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import ipywidgets as widgets

from perfkit import lookup, registry
from perfkit.errors import Cancelled, InvalidValue, PerfkitError, RunFailed, one_of
from perfkit.machine import devices
from perfkit.notebook.panel import Panel, Widgets
from perfkit.notebook.pieces import heading, row
from perfkit.notebook.shown import Recipes
from perfkit.recipe import Recipe, Value
from perfkit.results import Parity, Run
from perfkit.show import figures, sentences, tables
from perfkit.show.document import Bullets, Content, Notice, Section
from perfkit.show.style import Figure
from perfkit.studies import planning, staging
from perfkit.studies.climb import climb
from perfkit.studies.decisions import plan_key
from perfkit.studies.job import Job, PlanAnswer, Stopped, answer_after, remembered
from perfkit.studies.planning import Where
from perfkit.studies.sources import Plan, Progress


def use(device: str | None = None) -> None:
    """Where the panels that are made from now on run, if they name no device, until the kernel ends.

    It is named as for `perfkit.plan`; None is this machine's best. Raises a PerfkitError if it is not there.
    """
    planning.plan(device=device)
    PlanPanel.kernel_device = device


class PlanPanel(Panel):
    """Measures what `plan_for` gives for a place of the menu, and for switches that are set from outside.

    It takes what `perfkit.plan` takes as `where`, and raises a PerfkitError where there can be no plan.
    """

    kernel_device: str | None = None  # what `use` was given last

    def __init__(
        self, question: str, plan_for: Callable[..., Plan], where: Where, above: Widgets = (), **more: Widgets
    ) -> None:
        self._plan_for = partial(plan_for, **where)
        self._settings = dict(where.get("settings") or {})
        device = where.get("device") or self.kernel_device
        plan = self._plan_for(device=device, settings=self._settings)
        self.device = device or plan.subject.device  # what the plan is for, such as `recorded:NAME`
        places = {name: name for name in (self.device, self.kernel_device) if name} | _places()
        options = [(words, name) for name, words in places.items()]
        self._menu = widgets.Dropdown(
            description="Where", options=options, value=self.device, _dom_classes=["pk-where"]
        )
        self._menu.observe(self._chosen, "value")
        head = row([heading(question), self._menu], "pk-head")
        key = (plan.subject, plan.ladder.stages, plan.ladder.recipes, where)
        super().__init__(plan, key, [head, *above], **more)

    def set(self, **switches: Value) -> None:
        """Sets switches from the first stage on."""
        self._move(self.device, {**self._settings, **switches})

    def choose(self, device: str) -> None:
        """Moves the panel; where it cannot run, and while it runs, it says why, and nothing changes."""
        if device == self.device:
            return
        self.status.attempt(lambda: self._move(device, self._settings))
        places = dict(self._menu.options)
        self._menu.unobserve(self._chosen, "value")  # setting the options chooses the first of them
        if self.device not in places.values():
            self._menu.options = [*places.items(), (self.device, self.device)]
        self._menu.value = self.device
        self._menu.observe(self._chosen, "value")

    def _chosen(self, change: Any) -> None:
        self.choose(change["new"])

    def _move(self, device: str, settings: dict[str, Any]) -> None:
        self.require_rest()
        plan = self._plan_for(device=device, settings=settings)
        is_same = device == self.device and not self._differs(plan)
        self.device = device
        self._settings = settings
        if not is_same:
            self.plan = plan
            self._plan_changed()

    def _differs(self, plan: Plan) -> bool:
        """Whether a plan measures other recipes than the panel's own, without the changes of the controls."""
        ours, others = (staging.all_stages(each.trying(changes={}).source()) for each in (self.plan, plan))
        return [stage.recipe for stage in ours] != [stage.recipe for stage in others]

    def _plan_changed(self) -> None:
        """Adapts the panel to its new plan, and shows what is known of it."""
        self._recall()
        self.show()

    def _recall(self) -> None:
        """Takes as the answer what was measured earlier for the plan, if anything was."""
        self._clear(self.plan)
        self._set_answer(remembered(self.plan, self.store))
        if self.runs:
            when = self.runs[0].created[:16].replace("T", " ")
            self.status.say(f"measured earlier, at {when} UTC; Run measures again")
            self.status.show_problem(_failure(self.runs))

    def _clear(self, plan: Plan) -> None:
        """Takes away the answer; problems of an earlier result do not apply to the next one."""
        self.store.problems.clear()
        self.store.lost.clear()
        self._set_answer(PlanAnswer(plan))

    @contextlib.contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        """Makes a notice of what goes wrong in the block: the result is shown without what it adds."""
        try:
            yield
        except Cancelled:
            raise
        except (PerfkitError, OSError) as problem:
            self._set_answer(replace(self.answer, notices=(*self.answer.notices, f"{what}: {problem}")))

    def _measure(self, job: Job) -> None:
        self._climb(job)
        if not job.plan.recorded:
            self.store.remember(plan_key(job.plan), self.answer.runs[0].session)
            self._check(job)
            with self._noted("The steps could not be drawn"):
                self._steps(job.progress)

    def _check(self, job: Job) -> None:
        """Checks a result further once it has been stored."""

    def _climb(self, job: Job) -> None:
        """Measures what a job asks for. Raises if it, or one of its runs, failed or was stopped."""
        before = self.answer
        earlier = job.before.runs if job.before else ()
        self._clear(job.plan)
        try:
            runs = climb(job.plan, self.store, job.progress, earlier)
        except BaseException:
            self._set_answer(answer_after(before, job, ()))
            raise
        self._set_answer(answer_after(before, job, runs))
        failure = _failure([run for run in runs if run not in earlier])  # what failed earlier has been told
        if failure:
            self._remember_others(before, job)
            raise failure
        self._require_stored()
        if any(run.status == "cancelled" for run in runs):
            raise Stopped(runs)
        job.raise_if_stopped()

    def _remember_others(self, before: PlanAnswer, job: Job) -> None:
        """Remembers a whole ladder in which a stage failed, if others were measured."""
        measured = [run for run in self.answer.runs if run.status == "ok" and not run.is_again]
        is_whole = not (job.progress.cancelled.is_set() or self.store.lost)
        if len(measured) > 1 and is_whole and self.answer is not before and not job.plan.recorded:
            self.store.remember(plan_key(job.plan), self.answer.runs[0].session)

    def sections(self) -> Sequence[Content]:
        if not self.runs:
            return tuple(Notice(words) for words in self.store.problems)
        pictures = self._pictures() if any(run.status == "ok" for run in self.runs) else []
        details = [*self._evidence(), *tables.overview(self.runs)[:2]]
        notices = [*self.store.problems, *self.answer.notices, *sentences.notices(self.runs)]
        return [*map(Notice, notices), *pictures, *self._answers(), Section("Details", details, folded=True)]

    def _pictures(self) -> list[Content]:
        """Before above after: an addition's picture of the steps, else bars, and why."""
        bars = figures.headline(self.runs)
        try:
            steps = self._steps()
        except (PerfkitError, OSError) as problem:
            return [Notice(f"There is no picture of the steps: {problem}"), bars]
        return [steps._replace(title=bars.title) if steps else bars]

    def _steps(self, progress: Progress | None = None) -> Figure | None:
        """An addition's picture of one or two runs, which is measured only with a `progress`."""
        runs, _ = sentences.pair(self.runs)
        if not 1 <= len(runs) <= 2:
            return None
        plan = self.answer.plan.with_code(runs[0].code)
        return registry.first_answer("PICTURES", runs, plan, progress)  # type: ignore[no-any-return]

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


def _failure(runs: Sequence[Run]) -> RunFailed | None:
    """Why stages failed, each reason once, with the first stage that has it; None if none did."""
    failed = {run.reason: run.title for run in reversed(runs) if run.status == "failed"}
    words = [f"{title} failed: {why}" for why, title in reversed(failed.items())]
    return RunFailed("; ".join(words)) if words else None


def proof(plan: Plan, title: str, recipe: Recipe, progress: Progress | None = None) -> Parity | None:
    """Whether a recipe trains as the plain program does; None where no addition can tell."""
    return registry.first_answer("PROOFS", plan, title, recipe, progress=progress)  # type: ignore[no-any-return]


def _places() -> dict[str, str]:
    menu = {device: f"this machine ({device})" for device in (devices.check_device(None), "cpu")}
    for reference in registry.table("SOURCES").values():
        menu |= lookup.load(reference).menu()
    return menu


class LadderPanel(PlanPanel):
    """A ladder of stages on a workload, and a menu of the places where it can run, for this panel only.

    Args:
        stages: optimizations in their order; the whole default ladder if None.
        workload: a built-in one, or `package.module:name`; the preset's own if None.
        where: `preset`, `settings`, `device`, `options`, `host` and `seed`, as for `perfkit.plan`.

    Raises:
        PerfkitError: a name or value that is not allowed, or the panel cannot run there.
    """

    def __init__(
        self, stages: Sequence[str] | None = None, workload: str | None = None, **where: Unpack[Where]
    ) -> None:
        question = "What does each stage add to the ones below it?"
        plan_for = partial(planning.plan, workload, stages=stages)
        super().__init__(question, plan_for, where)
        self._plan_changed()


class RecipePanel(PlanPanel):
    """Recipes by their titles, each compared with the first; it takes what a `LadderPanel` takes."""

    def __init__(self, recipes: Recipes, workload: str | None = None, **where: Unpack[Where]) -> None:
        if not recipes:
            raise InvalidValue("no recipe was given", 'Give each a title, such as {"AMP": {"amp": "bf16"}}')
        plan_for = partial(_plan_of_recipes, recipes, workload)
        super().__init__("Which of these recipes is fastest?", plan_for, where)
        self._plan_changed()

    def __getitem__(self, title: str) -> Run:
        runs = {run.title: run for run in self.results() if run.status == "ok"}
        if title not in runs:
            raise one_of(title, list(runs), "measured recipe")
        return runs[title]


def _plan_of_recipes(recipes: Recipes, workload: str | None, **where: Unpack[Where]) -> Plan:
    plan = planning.plan(workload, stages=["baseline"], **where)
    plain = plan.source().baseline()
    return plan.trying(recipes=tuple((title, plain.replace(**changes)) for title, changes in recipes.items()))
