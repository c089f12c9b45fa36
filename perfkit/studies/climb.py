"""The ladder: every rung is tried on top of what was kept so far, and kept if it is faster."""

import time
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from perfkit.ladder.presets import Preset
from perfkit.ladder.stages import KEPT, Stage
from perfkit.recipe import Recipe
from perfkit.results import stats
from perfkit.results.run import AGAIN, Run
from perfkit.results.store import RunStore
from perfkit.studies import rungs
from perfkit.studies.progress import Progress
from perfkit.studies.sources import Plan, Source, StopRule, described, opened
from perfkit.worker.messages import Description

RUNG = "rung"
"""The fact of a run that says whether its rung was kept: `kept`, or `dropped: ` with the reason."""


def climb(plan: Plan, store: RunStore | None = None, progress: Progress | None = None) -> list[Run]:
    """Measures the ladder of a plan, or its recipes.

    Each rung is measured in the same rounds as the recipe that was kept so far and the baseline. It is kept
    if it is faster, or if the plan says so. At the end the kept recipe is measured afresh against the
    baseline, in new processes: what was chosen for being fast came out lucky. A rung that fails does not stop
    the others, and nothing is built on it.

    Args:
        plan: what to measure.
        store: where runs are kept; None keeps none.
        progress: follows and stops it.

    Raises:
        PerfkitError: the workload cannot be loaded at all.
        KeyboardInterrupt: after every process has ended.
    """
    progress = progress or Progress()
    with opened(plan, progress) as source:
        climber = _Climber(source, store)
        climber.climb()
    return climber.runs


def has_verdicts(preset: Preset) -> bool:
    """Whether the preset's least number of rounds is enough for verdicts."""
    return preset.rounds >= stats.MIN_ROUNDS


def stop_rule(preset: Preset) -> StopRule:
    """When the rounds of a ladder end."""
    return StopRule(
        preset.rounds,
        precision=preset.precision if has_verdicts(preset) else None,
        part=preset.part,
        adds_noise=True,
        budget_s=preset.budget_s,
        limit_s=preset.limit_s,
    )


def again(stage: Stage) -> Stage:
    """The A/A row of a baseline."""
    return replace(stage, name=AGAIN, title=f"{stage.title} (again)", not_applied=None)


def is_ladder_of(plan: Plan, description: Description, runs: Sequence[Run]) -> bool:
    """Whether stored runs are those that this plan would measure, given what was kept."""
    rows = [run for run in runs if run.stage not in (AGAIN, KEPT)]
    target = described(plan, description).target
    stages = rungs.recipe_stages(plan.recipes, target)
    if not stages:
        kept = rungs.first(plan, target)
        stages = [kept]
        for name, run in zip(rungs.names(plan), rows[1:], strict=False):
            stages.append(rungs.rung(plan, target, name, kept.recipe))
            if run.facts.get(RUNG) == "kept":
                kept = stages[-1]
    recipes = [Recipe.from_dict(run.recipe) for run in rows]
    return recipes == [stage.recipe for stage in stages]


class _Climber:
    def __init__(self, source: Source, store: RunStore | None) -> None:
        self.runs: list[Run] = []
        self._source = source
        self._plan = source.plan
        self._store = store
        self._started = time.monotonic()

    def climb(self) -> None:
        plan, source = self._plan, self._source
        if stored := source.stored():
            for run in stored:
                self._source.progress.finish(run)
            self.runs = stored
        elif plan.recipes:
            self._together(rungs.recipe_stages(plan.recipes, source.target))
        elif len(rungs.names(plan)) < 2:
            self._together(rungs.ladder_stages(plan, source.target))
        else:
            self._rung_by_rung(rungs.first(plan, source.target))

    def _together(self, stages: Sequence[Stage]) -> None:
        """All stages in the same rounds, and the baseline once more."""
        compared = sum(not stage.reason for stage in stages) > 1
        row = [again(stages[0])] if compared and self._repeats() else []
        for run in self._source.measure([*stages, *row], stop_rule(self._plan.preset)):
            self._keep(run)

    def _rung_by_rung(self, first: Stage) -> None:
        plan, source, names = self._plan, self._source, rungs.names(self._plan)
        parts = len(names) + 1
        kept = first
        for number, name in enumerate(names):
            rung = rungs.rung(plan, source.target, name, kept.recipe)
            rule = self._stop_rule(parts - number)
            if rung.reason:
                if not self.runs:
                    self._keep(*source.measure([first], rule))
                self._keep(*source.measure([rung], rule))
                continue
            stages = [first, rung] if kept is first else [first, kept, rung]
            with source.progress.part(number, parts):
                base, *_, last = source.measure(stages, rule)
            last, is_kept = self._judged(last)
            self._keep(*([] if self.runs else [base]), last)
            if is_kept:
                kept = rung
            if source.stopped or base.status != "ok":
                return
        if kept is not first and self._repeats():
            source.renew()
            final = replace(kept, name=KEPT, title="everything kept, measured afresh")
            with source.progress.part(len(names), parts):
                _, *runs = source.measure([first, final, again(first)], self._stop_rule(1))
            self._keep(*runs)

    def _stop_rule(self, parts_left: int) -> StopRule:
        """The rule for one of the parts that are left, which share the time that is left."""
        rule = stop_rule(self._plan.preset)
        left_s = self._started + rule.limit_s - time.monotonic()
        return replace(rule, limit_s=max(0.0, left_s) / parts_left)

    def _judged(self, run: Run) -> tuple[Run, bool]:
        """The run with the fact whether its rung is kept."""
        plan, ratio = self._plan, run.speedup("previous")
        if run.status != "ok" or ratio is None:
            return run, False
        wanted = plan.keep_all or run.stage in plan.keep or not has_verdicts(plan.preset)
        # On a busy machine there is no verdict, and the interval decides.
        is_kept = wanted or ratio.is_faster or (ratio.verdict == "disturbed" and ratio.low > 1)
        fact = "kept" if is_kept else f"dropped: {ratio.verdict}"
        return msgspec.structs.replace(run, facts={**run.facts, RUNG: fact}), is_kept

    def _repeats(self) -> bool:
        return self._source.noisy and has_verdicts(self._plan.preset)

    def _keep(self, *runs: Run) -> None:
        for run in runs:
            if self._store:
                self._store.add(run)
            self._source.progress.finish(run)
            self.runs.append(run)
