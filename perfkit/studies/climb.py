"""Climbing a ladder: its stages are measured in groups, those that help are kept, and the end is measured."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from perfkit.ladder.catalogue import ALL_KEPT, LONG_STARTS, SO_FAR, TOGETHER, Stage, StopRule, groups
from perfkit.recipe import Recipe
from perfkit.results import Decision, Rounds, Run, RunStore, keep, stats
from perfkit.results.run import continued, with_rate_of
from perfkit.studies import staging
from perfkit.studies.sources import Plan, Progress, Session, Source, Study

END_SIDES = 3  # the baseline, everything kept, and the baseline again
CACHED = 2  # slices on a cached batch: more would take time from the rounds of a ladder


def climb(
    plan: Plan, store: RunStore | None = None, progress: Progress | None = None, earlier: Sequence[Run] = ()
) -> list[Run]:
    """Measures the ladder of a plan, or its recipes.

    Stages of a group (`catalogue.GROUPS`) are measured in the same rounds as what was kept before it. A stage
    is kept if it is faster, if the plan says so, or if the preset has too few rounds for a verdict. At the
    end all that was kept is measured against the baseline: what helps alone may not help together.

    Runs are saved in `store`; those that could not be saved are listed in `store.lost`. Rounds are added to
    those of `earlier`, but a ladder of several stages takes none.
    """
    progress = progress or Progress()
    runs: list[Run] = []
    with plan.open(progress, store=store) as session:
        stored = session.source.stored()
        for run in stored or _runs_of(session, earlier):
            if not (stored or run in earlier):
                keep(store, run)
            progress.finish(run)
            runs.append(run)
    return runs


def with_earlier(runs: Sequence[Run], earlier: Sequence[Run]) -> list[Run]:
    """Runs with the rounds of the earlier ones of the same stage, recipe and code before their own.

    If one was stopped before it had further rounds, all of them are the earlier ones: the others would be
    compared with runs that are not there.
    """
    continued_runs: list[Run] = []
    for run in runs:
        before = next((other for other in earlier if _continues(run, other)), None)
        if before and run.status == "cancelled":
            return list(earlier)
        whole = continued(before, run) if before and run.status == "ok" else run
        continued_runs.append(with_rate_of(whole, continued_runs[0]) if continued_runs else whole)
    return continued_runs


def _continues(run: Run, before: Run) -> bool:
    is_same = (before.stage, before.recipe, before.code) == (run.stage, run.recipe, run.code)
    return is_same and before.status == "ok"


def _runs_of(session: Session, earlier: Sequence[Run]) -> Iterator[Run]:
    source = session.source
    ladder = source.plan.ladder
    if not ladder.recipes and len(ladder.stages) > 1:
        parts = groups(ladder.stages) if source.is_costly else [[name] for name in ladder.stages]
        yield from _Climb(session, parts).runs()
        return
    stages = staging.all_stages(source)
    if ladder.below and stages[-1].reason:  # there is nothing to compare it with
        stages = stages[-1:]
    if sum(not stage.reason for stage in stages) > 1 and _repeats_baseline(source):
        stages = [*stages, staging.again(stages[0])]
    runs = session.measure(stages, source.plan.rule)
    yield from with_earlier(runs, earlier) if earlier else runs


@dataclass(frozen=True)
class KeptStages:
    """The stages that a climb has kept so far. The next group is built on them, and measured next to them."""

    baseline: Run
    stage: Stage  # with the changes of all of them
    run: Run | None  # of all of them in one training; None if those kept last were only measured apart
    newest: tuple[Run, ...] = ()  # of the stages that were kept last, all of one group
    gains: tuple[Rounds, ...] = ()
    """The rounds of every stage that is kept, each with those of what was kept before its group."""

    def multiplied(self, run: Run) -> Run:
        """A run of all these stages, which was measured without the baseline.

        Its ratio to the baseline is what its stages have gained, one after the other, multiplied.
        """
        pairing = self.newest[0].pairing("baseline")
        if not (pairing and self.baseline.samples_per_s):
            return run
        no_rounds = structs.asdict(Rounds([], []))
        pairing = structs.replace(pairing, **no_rounds, via=list(self.gains))
        return with_rate_of(structs.replace(run, pairings=[pairing]), self.baseline)

    def plus(self, candidates: Sequence[Stage], runs: Sequence[Run]) -> "KeptStages":
        """These stages, and those of a group that the decisions on its runs keep."""
        kept = {run.stage: run for run in runs if run.decision and run.decision.kept}
        for name in list(kept):
            for part in TOGETHER.get(name, ()):  # a plan may keep it, too
                kept.pop(part, None)
        if not kept:
            return self
        newest = tuple(kept.values())
        stage = _combined(self.stage, [stage for stage in candidates if stage.name in kept])
        pairings = [run.pairing("previous") for run in newest]
        gains = [pairing.rounds for pairing in pairings if pairing]
        run = newest[0] if len(newest) == 1 else None
        return KeptStages(self.baseline, stage, run, newest, (*self.gains, *gains))


class _Climb:
    """A ladder that is climbed group by group.

    The stages of a group share rounds with what is kept. The baseline is measured with the first group; later
    groups are compared with it by way of what was kept between. Where a run costs nothing, every stage is
    measured with the baseline, too, so they are compared directly.
    """

    def __init__(self, session: Session, groups: Sequence[Sequence[str]]) -> None:
        self._session = session
        self._source = session.source
        self._groups = groups
        self._baseline = staging.first(self._source.plan, self._source.target)
        self._time = _Time(self._source.plan.rule)

    def runs(self) -> Iterator[Run]:
        """Measures one group after the other, then the end; the run of the baseline comes first."""
        candidates = self._candidates(0, self._baseline.recipe)
        baseline, *runs = self._measure(0, [self._baseline, *candidates])
        so_far = KeptStages(baseline, self._baseline, baseline)
        judged = self._judged(runs, so_far, baseline)
        yield from (baseline, *judged)
        so_far = so_far.plus(candidates, judged)
        for number in range(1, len(self._groups)):
            if self._goes_on(baseline):
                so_far, runs = self._group(number, so_far)
                yield from runs
        if so_far.newest and self._goes_on(baseline) and _repeats_baseline(self._source):
            yield from self._end(so_far)

    def _goes_on(self, baseline: Run) -> bool:
        return baseline.status == "ok" and not self._session.stopped

    def _candidates(self, number: int, before: Recipe) -> list[Stage]:
        """The stages of a group on top of a recipe, and those that are two of them at once."""
        plan = self._source.plan

        def stage(name: str) -> Stage:
            return staging.stage_of(plan, self._source.target, name, before, plan.ladder.changes)

        candidates = [stage(name) for name in self._groups[number]]
        if plan.rule.rounds < stats.MIN_ROUNDS:  # no verdict could tell which of them to keep
            return candidates
        acting = {stage.name for stage in candidates if not stage.reason}
        for name, parts in TOGETHER.items():
            if acting.issuperset(parts) and name not in plan.ladder.stages:
                candidates.append(stage(name))
        return candidates

    def _group(self, number: int, so_far: KeptStages) -> tuple[KeptStages, list[Run]]:
        """Measures the stages of a group next to what is kept; returns what is kept then, and the runs."""
        candidates = self._candidates(number, so_far.stage.recipe)
        if all(stage.reason for stage in candidates):  # nothing is measured again for them
            return so_far, self._session.measure(candidates, self._source.plan.rule)
        of_kept, *of_candidates = self._measure(number, [so_far.stage, *candidates])
        rows: list[Run] = []
        if of_kept.status == "failed":
            rows = [of_kept]
        elif so_far.run is None:
            of_kept = so_far.multiplied(of_kept)
            so_far = replace(so_far, run=of_kept)
            rows = [of_kept]
        judged = self._judged(of_candidates, so_far, so_far.run or of_kept)
        return so_far.plus(candidates, judged), [*rows, *judged]

    def _measure(self, number: int, stages: Sequence[Stage]) -> list[Run]:
        """Measures stages, what is kept first, in the share of a group or the end of what time is left."""
        if not self._source.is_costly and stages[0] is not self._baseline:
            return self._measure(number, [self._baseline, *stages])[1:]
        rule, later_s = self._time.share(self._sides_from(number, stages[0].recipe))
        with self._session.progress.part(number, len(self._groups) + 1, later_s):
            return self._session.measure(stages, rule)

    def _sides_from(self, number: int, kept: Recipe) -> list[int]:
        """The number of sides of this group, each later one and the end; a slow start counts twice."""
        counts: list[int] = []
        for later in range(number, len(self._groups)):
            acting = [stage.name for stage in self._candidates(later, kept) if not stage.reason]
            parts = [2 if name in LONG_STARTS else 1 for name in acting]
            if parts or later == 0:  # the first one has the baseline in any case
                counts.append(1 + sum(parts))
        return [*counts, END_SIDES]

    def _judged(self, runs: Sequence[Run], so_far: KeptStages, previous: Run) -> list[Run]:
        """The runs of a group, compared with what is kept and with the baseline, and their decisions."""
        self._time.extend_if_disturbed(runs)
        decided = [structs.replace(run, decision=self._decision(run)) for run in runs]
        via = so_far.gains if self._source.is_costly else ()
        return _chosen([self._compared(run, previous, so_far.baseline, via) for run in decided])

    def _compared(self, run: Run, previous: Run, baseline: Run, via: Sequence[Rounds] = ()) -> Run:
        """A run whose pairings name these rows of the ladder, in place of the runs that shared its rounds."""
        pairings = []
        for pairing in run.pairings:
            if pairing.role == "previous":
                pairings.append(structs.replace(pairing, against=previous.id))
            else:
                pairings.append(structs.replace(pairing, against=baseline.id, via=list(via)))
        compared = structs.replace(run, pairings=pairings)
        return with_rate_of(compared, baseline) if self._source.is_costly else compared

    def _decision(self, run: Run) -> Decision | None:
        plan = self._source.plan
        ratio = run.speedup("previous")
        if ratio is None:
            return None
        if run.stage in plan.ladder.keep or plan.rule.rounds < stats.MIN_ROUNDS:
            return Decision(True, "plan")
        return Decision(ratio.is_faster, "climb", "" if ratio.is_faster else ratio.verdict)

    def _end(self, so_far: KeptStages) -> Iterator[Run]:
        """Measures everything kept against the baseline, and the baseline against itself."""
        final = replace(so_far.stage, name=ALL_KEPT, title="everything kept, measured again")
        stages = [self._baseline, final, staging.again(self._baseline)]
        first, *runs = self._measure(len(self._groups), stages)
        if first.status == "failed":
            yield first
        for run in runs:
            remarks = [] if run.is_again else _shortfall(run, so_far.newest)
            warned = structs.replace(run, warnings=[*run.warnings, *remarks])
            yield self._compared(warned, so_far.baseline, so_far.baseline)


class _Time:
    """Divides the time of a ladder among its groups and the end."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = replace(rule, cached=CACHED)
        if rule.goal:  # large effects must be precise, too: they are multiplied, and people quote them
            self._rule = replace(self._rule, goal=replace(rule.goal, part=0.0))
        self._budget = rule.budget
        self._limit_s = self._budget.ladder_s if self._budget else None
        self._began = time.monotonic()

    def extend_if_disturbed(self, runs: Sequence[Run]) -> None:
        """Gives the ladder more time if other programs spoiled rounds."""
        if self._budget and any(run.disturbed is not None for run in runs):
            self._limit_s = self._budget.noisy_ladder_s

    def share(self, sides: Sequence[int]) -> tuple[StopRule, float]:
        """The rule of the next of several measurements, by their sides; and the seconds that it leaves."""
        if self._limit_s is None:
            return self._rule, 0.0
        left_s = max(0.0, self._began + self._limit_s - time.monotonic())
        own_s = left_s * sides[0] / sum(sides)
        return self._rule.within(own_s), left_s - own_s


def _chosen(runs: Sequence[Run]) -> list[Run]:
    """The runs of a group; of two stages and both together, only the fastest of those that help stays kept.

    It is the fastest by its ratio: if chance decides between two that help, little is lost.
    """
    by_stage = {run.stage: run for run in runs}
    for name, parts in TOGETHER.items():
        if name not in by_stage:  # it was not tried in this group: the two may add up
            continue
        gains: dict[str, float] = {}
        for stage in (name, *parts):
            run = by_stage.get(stage)
            ratio = run.speedup("previous") if run else None
            if run and ratio and run.decision == Decision(True, "climb"):
                gains[stage] = ratio.ratio
        best = max(gains, key=gains.__getitem__, default="")
        for stage in gains:
            if stage != best:
                dropped = Decision(False, "climb", f"{by_stage[best].title} is faster")
                by_stage[stage] = structs.replace(by_stage[stage], decision=dropped)
    return list(by_stage.values())


def _combined(before: Stage, kept: Sequence[Stage]) -> Stage:
    """The recipe that was kept before with the changes of several stages."""
    recipe = before.recipe
    for stage in kept:
        changes = stage.recipe.diff(before.recipe)
        recipe = recipe.replace(**{name: value for name, (value, _) in changes.items()})
    return Stage(SO_FAR, "kept so far", recipe)


def _shortfall(final: Run, newest: Sequence[Run]) -> Iterator[str]:
    """A remark if everything kept is slower, beyond chance, than a stage that was kept last."""
    whole = final.speedup("baseline")
    for run in newest:
        ratio = run.speedup("baseline")
        if whole and ratio and whole.high < ratio.low:
            promised = f"'{run.title}' promised ({ratio.ratio:.2f}× of the baseline)"
            yield f"everything kept is slower than {promised}: what helps alone does not help together"


def _repeats_baseline(source: Source) -> bool:
    """Whether the baseline is measured twice, which shows the noise."""
    return Study.NOISE not in source.refused and source.plan.rule.rounds >= stats.MIN_ROUNDS
