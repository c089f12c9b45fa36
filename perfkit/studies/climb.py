"""Climbing a ladder: its stages are measured in groups, those that help are kept, and the end is measured.

The stages of a group are tried at the same time, each on top of what the groups before it left.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec import structs

from perfkit.ladder.catalogue import DEAR, KEPT, SO_FAR, TOGETHER, Stage, StopRule, groups
from perfkit.results import Decision, Rounds, Run, RunStore, continued, keep, rated, stats
from perfkit.show import units
from perfkit.studies import staging
from perfkit.studies.sources import Plan, Progress, Source, Study

END_SIDES = 3  # the baseline, everything kept, and the baseline again
CACHED = 2  # slices on a cached batch: the time of a ladder goes into rounds


def climb(
    plan: Plan, store: RunStore | None = None, progress: Progress | None = None, earlier: Sequence[Run] = ()
) -> list[Run]:
    """Measures the ladder of a plan, or its recipes.

    Stages of a group (`catalogue.GROUPS`) are measured in the same rounds as what was kept before it. A stage
    is kept if it is faster, if the plan says so, or if the preset has too few rounds for a verdict. At the
    end all that was kept is measured against the baseline: what helps alone may not help together. A workload
    that cannot be loaded raises, as does Ctrl-C, once every process has ended.

    The `store` keeps the runs; its `lost` has what it cannot keep. Rounds are added to those of `earlier`.
    """
    progress = progress or Progress()
    runs: list[Run] = []
    with plan.open(progress, store=store) as source:
        stored = source.stored()
        for measured in stored or _runs_of(source):
            run = with_earlier(measured, earlier)
            if runs and earlier and run not in earlier:
                run = rated(run, runs[0])
            if not (stored or run in earlier):
                keep(store, run)
            progress.finish(run)
            runs.append(run)
    return runs


def with_earlier(run: Run, earlier: Sequence[Run]) -> Run:
    """A run with the rounds of the earlier one of its stage, recipe and code before its own.

    One that was stopped before it had further rounds is the earlier one.
    """
    for before in earlier:
        is_same = (before.stage, before.recipe, before.code) == (run.stage, run.recipe, run.code)
        if is_same and before.status == "ok" and run.status == "ok":
            return continued(before, run)
        if is_same and before.status == "ok" and run.status == "cancelled":
            return before
    return run


def _runs_of(source: Source) -> Iterator[Run]:
    ladder = source.plan.ladder
    if not ladder.recipes and len(ladder.stages) > 1:
        yield from _Climb(source).runs()
        return
    rows = staging.all_stages(source)
    if ladder.below and rows[-1].reason:  # there is nothing to compare it with
        rows = rows[-1:]
    if sum(not stage.reason for stage in rows) > 1 and _repeats(source):
        rows = [*rows, staging.again(rows[0])]
    yield from source.measure(rows, source.plan.rule)


class _Climb:
    """A ladder under way: what is kept, and how it compares with the baseline."""

    def __init__(self, source: Source) -> None:
        plan = source.plan
        self._source = source
        # Where measuring costs nothing, each stage is built on the one before it.
        names = plan.ladder.stages
        self._groups = groups(names) if source.is_costly else [[name] for name in names]
        self._base = staging.first(plan, source.target)
        self._kept = self._base
        self._base_run: Run | None = None
        self._kept_run: Run | None = None
        """The run of what is kept; None until it is measured: the baseline, or several stages together."""
        self._newest: list[Run] = []  # the runs of the stages that were kept last, all of one group
        self._below: list[Rounds] = []
        """The rounds of every stage that is kept, each with those of what was kept before its group."""
        self._began = time.monotonic()
        self._budget = plan.rule.budget
        self._limit_s = self._budget.ladder_s if self._budget else None

    def runs(self) -> Iterator[Run]:
        """Measures one group after the other, then the end; the run of the baseline comes first."""
        for number in range(len(self._groups)):
            yield from self._group(number)
            has_failed = self._base_run is not None and self._base_run.status != "ok"
            if self._source.stopped or has_failed:
                return
        if self._kept is not self._base and _repeats(self._source):
            yield from self._end()

    def _stage(self, name: str) -> Stage:
        plan = self._source.plan
        return staging.stage_of(plan, self._source.target, name, self._kept.recipe, plan.ladder.changes)

    def _candidates(self, number: int) -> list[Stage]:
        """The stages of a group, each on top of what is kept, and those that are two of them at once."""
        plan = self._source.plan
        found = [self._stage(name) for name in self._groups[number]]
        if plan.rule.rounds < stats.MIN_ROUNDS:  # no verdict could tell which of them to keep
            return found
        acting = {stage.name for stage in found if not stage.reason}
        for name, parts in TOGETHER.items():
            if acting.issuperset(parts) and name not in plan.ladder.stages:
                found.append(self._stage(name))
        return found

    def _group(self, number: int) -> Iterator[Run]:
        """Measures the stages of a group next to what is kept, and keeps those that help."""
        candidates = self._candidates(number)
        if self._base_run and all(stage.reason for stage in candidates):  # nothing is measured again for them
            yield from self._source.measure(candidates, self._source.plan.rule)
            return
        before, runs = self._measured(number, candidates)
        if self._base_run is None:
            self._base_run = before
        if before.status == "failed":
            yield before
        elif self._kept_run is None:
            self._kept_run = self._multiplied(before)
            yield self._kept_run
        if self._budget and any(run.disturbed is not None for run in runs):
            self._limit_s = self._budget.noisy_ladder_s
        kept = self._kept_run or before
        runs = _chosen([self._judged(run, kept, self._base_run) for run in runs])
        self._keep(candidates, runs)
        yield from runs

    def _multiplied(self, kept: Run) -> Run:
        """A run of several stages that were kept: to the baseline it has the product of their ratios."""
        if not self._newest or self._base_run is None:
            return kept  # it is the baseline
        pairing = self._newest[0].pairing("baseline")
        rate = self._base_run.samples_per_s
        if pairing is None or rate is None:
            return kept
        further = [run.pairing("previous") for run in self._newest[1:]]
        via = [*pairing.via, *(each.rounds for each in further if each)]
        pairings = [structs.replace(pairing, via=via)]
        return structs.replace(kept, pairings=pairings, reference_samples_per_s=rate.value)

    def _measured(self, number: int, candidates: Sequence[Stage]) -> tuple[Run, list[Run]]:
        """The runs of what is kept, and of the stages of a group, in the same rounds."""
        references = [self._kept]
        if not self._source.is_costly and self._kept is not self._base:
            references.insert(0, self._base)
        found = self._in_its_time(number, [*references, *candidates])
        return found[len(references) - 1], found[len(references) :]

    def _in_its_time(self, number: int, stages: Sequence[Stage]) -> list[Run]:
        """Measures stages in the share of a group, or of the end, of what time is left."""
        rule, later_s = self._rule(number)
        with self._source.progress.part(number, len(self._groups) + 1, later_s):
            return self._source.measure(stages, rule)

    def _judged(self, run: Run, kept: Run, base: Run) -> Run:
        """A run of a group with its decision, compared with what is kept and with the baseline."""
        against = {"previous": kept.id, "baseline": base.id}
        pairings = []
        for pairing in run.pairings:  # a baseline not measured again is reached by the ratios below
            via = list(self._below) if pairing.role == "baseline" else []
            pairings.append(structs.replace(pairing, against=against[pairing.role], via=via))
        rate = base.samples_per_s if self._source.is_costly else None
        return structs.replace(
            run,
            pairings=pairings,
            reference_samples_per_s=rate.value if rate else None,
            decision=self._decision(run),
        )

    def _decision(self, run: Run) -> Decision | None:
        plan = self._source.plan
        ratio = run.speedup("previous")
        if ratio is None:
            return None
        if run.stage in plan.ladder.keep or plan.rule.rounds < stats.MIN_ROUNDS:
            return Decision(True, "plan")
        return Decision(ratio.is_faster, "climb", "" if ratio.is_faster else ratio.verdict)

    def _keep(self, candidates: Sequence[Stage], runs: Sequence[Run]) -> None:
        """Has the next group built on the stages of this one that were kept."""
        kept = {run.stage: run for run in runs if run.decision and run.decision.kept}
        for name in list(kept):
            for part in TOGETHER.get(name, ()):  # a plan may keep it, too
                kept.pop(part, None)
        if not kept:
            return
        self._kept = _together(self._kept, [stage for stage in candidates if stage.name in kept])
        self._newest = list(kept.values())
        self._kept_run = self._newest[0] if len(kept) == 1 else None
        if self._source.is_costly:
            pairings = [run.pairing("previous") for run in self._newest]
            self._below += [pairing.rounds for pairing in pairings if pairing]

    def _end(self) -> Iterator[Run]:
        """Measures everything kept against the baseline, and the baseline against itself."""
        final = replace(self._kept, name=KEPT, title="everything kept, measured again")
        stages = [self._base, final, staging.again(self._base)]
        first, *runs = self._in_its_time(len(self._groups), stages)
        assert self._base_run
        if first.status == "failed":
            yield first
        base = self._base_run.samples_per_s
        for run in runs:
            newest = [] if run.is_again else self._newest
            yield structs.replace(
                run,
                pairings=[structs.replace(each, against=self._base_run.id) for each in run.pairings],
                reference_samples_per_s=base.value if base else None,
                warnings=[*run.warnings, *_shortfall(run, newest)],
            )

    def _rule(self, number: int) -> tuple[StopRule, float]:
        """The rule of a group, or of the end, by its share of the time; and the seconds that it leaves."""
        rule = replace(self._source.plan.rule, cached=CACHED)
        if rule.goal:  # however large the effects are, because they are multiplied, and people tell them
            rule = replace(rule, goal=replace(rule.goal, part=0.0))
        if self._limit_s is None:
            return rule, 0.0
        left_s = max(0.0, self._began + self._limit_s - time.monotonic())
        counts = self._sides_from(number)
        own_s = left_s * counts[0] / sum(counts)
        return rule.within(own_s), left_s - own_s

    def _sides_from(self, number: int) -> list[int]:
        """How many sides this group, each later one and the end have; a stage that is dear counts as two."""
        counts: list[int] = []
        for later in range(number, len(self._groups)):
            acting = [stage.name for stage in self._candidates(later) if not stage.reason]
            parts = [2 if name in DEAR else 1 for name in acting]
            measures_baseline = later == number and self._base_run is None
            if parts or measures_baseline:
                counts.append(1 + sum(parts))
        return [*counts, END_SIDES]


def _chosen(runs: Sequence[Run]) -> list[Run]:
    """The runs of a group; of two stages and both together, only the fastest of those that help stays kept.

    It is the fastest by its ratio: if chance decides between two that help, little is lost.
    """
    found = {run.stage: run for run in runs}
    for name, parts in TOGETHER.items():
        if name not in found:  # it was not tried in this group: the two may add up
            continue
        gains: dict[str, float] = {}
        for stage in (name, *parts):
            run = found.get(stage)
            ratio = run.speedup("previous") if run else None
            if run and ratio and run.decision == Decision(True, "climb"):
                gains[stage] = ratio.ratio
        best = max(gains, key=gains.__getitem__, default="")
        for stage in gains:
            if stage != best:
                dropped = Decision(False, "climb", f"{found[best].title} is faster")
                found[stage] = structs.replace(found[stage], decision=dropped)
    return list(found.values())


def _together(before: Stage, kept: Sequence[Stage]) -> Stage:
    """What was kept before, with the changes of several stages."""
    recipe = before.recipe
    for stage in kept:
        changes = stage.recipe.diff(before.recipe)
        recipe = recipe.replace(**{name: value for name, (value, _) in changes.items()})
    return Stage(SO_FAR, "kept so far", recipe)


def _shortfall(kept: Run, newest: Sequence[Run]) -> Iterator[str]:
    """A remark if everything kept is slower, beyond chance, than a stage that was kept last."""
    own = kept.speedup("baseline")
    for run in newest:
        ratio = run.speedup("baseline")
        if own and ratio and own.high < ratio.low:
            promised = f"'{run.title}' promised ({units.times(ratio.ratio)} of the baseline)"
            yield f"everything kept is slower than {promised}: what helps alone does not help together"


def _repeats(source: Source) -> bool:
    return Study.NOISE not in source.refused and source.plan.rule.rounds >= stats.MIN_ROUNDS
