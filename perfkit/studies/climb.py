"""Climbing a ladder: its stages are measured in groups, those that help are kept, and the end is measured.

The stages of a group are tried at the same time, each on top of what the groups before it left.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from perfkit.ladder.catalogue import DEAR, KEPT, SO_FAR, TOGETHER, Stage, StopRule, groups
from perfkit.recipe import Recipe
from perfkit.results import Decision, Pairing, Rounds, Run, RunStore, keep, stats
from perfkit.results.run import continued, with_rate_of
from perfkit.studies import staging
from perfkit.studies.sources import Plan, Progress, Session, Source, Study

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
    joined: list[Run] = []
    for run in runs:
        before = next((each for each in earlier if _continues(run, each)), None)
        if before and run.status == "cancelled":
            return list(earlier)
        whole = continued(before, run) if before and run.status == "ok" else run
        joined.append(with_rate_of(whole, joined[0]) if joined else whole)
    return joined


def _continues(run: Run, before: Run) -> bool:
    is_same = (before.stage, before.recipe, before.code) == (run.stage, run.recipe, run.code)
    return is_same and before.status == "ok"


def _runs_of(session: Session, earlier: Sequence[Run]) -> Iterator[Run]:
    source = session.source
    ladder = source.plan.ladder
    if not ladder.recipes and len(ladder.stages) > 1:
        yield from _Climb(session).runs()
        return
    rows = staging.all_stages(source)
    if ladder.below and rows[-1].reason:  # there is nothing to compare it with
        rows = rows[-1:]
    if sum(not stage.reason for stage in rows) > 1 and _repeats(source):
        rows = [*rows, staging.again(rows[0])]
    runs = session.measure(rows, source.plan.rule)
    yield from with_earlier(runs, earlier) if earlier else runs


@dataclass(frozen=True)
class Kept:
    """The stages that a climb has kept so far. The next group is built on them, and measured next to them."""

    base: Run  # of the baseline
    stage: Stage
    runs: tuple[Run, ...]  # one of all its stages; several if those kept last have not been trained together
    newest: tuple[Run, ...] = ()  # of the stages that were kept last, all of one group
    below: tuple[Rounds, ...] = ()
    """The rounds of every stage that is kept, each with those of what was kept before its group."""

    @property
    def is_combination(self) -> bool:
        """Whether it has stages that were kept at the same time, and not measured together yet."""
        return len(self.runs) > 1

    def measured(self, run: Run) -> "Kept":
        """These stages with a run of all of them in one training, which is measured without the baseline.

        Its ratio to that is what its stages have gained, one after the other, multiplied.
        """
        of_first = self.newest[0].pairing("baseline")
        if of_first and self.base.samples_per_s:
            no_rounds = structs.asdict(Rounds([], []))
            multiplied = structs.replace(of_first, **no_rounds, via=list(self.below))
            run = with_rate_of(structs.replace(run, pairings=[multiplied]), self.base)
        return replace(self, runs=(run,))

    def extended(self, candidates: Sequence[Stage], runs: Sequence[Run]) -> "Kept":
        """These stages, and those of a group that its decisions keep."""
        kept = {run.stage: run for run in runs if run.decision and run.decision.kept}
        for name in list(kept):
            for part in TOGETHER.get(name, ()):  # a plan may keep it, too
                kept.pop(part, None)
        if not kept:
            return self
        newest = tuple(kept.values())
        stage = _together(self.stage, [stage for stage in candidates if stage.name in kept])
        pairings = [run.pairing("previous") for run in newest]
        gained = [pairing.rounds for pairing in pairings if pairing]
        return Kept(self.base, stage, newest, newest, below=(*self.below, *gained))


class _Climb:
    """A ladder that is climbed group by group.

    Where measuring takes time, the stages of a group share rounds with what is kept. The baseline is measured
    with the first group; later ones are compared with it by what was kept between. Where a run costs nothing,
    each stage is a group, and is compared with the baseline directly.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._source = session.source
        self._is_direct = not session.source.is_costly
        names = session.source.plan.ladder.stages
        self._groups = [[name] for name in names] if self._is_direct else groups(names)
        self._base = staging.first(self._source.plan, self._source.target)
        self._time = _Time(self._source.plan.rule)

    def runs(self) -> Iterator[Run]:
        """Measures one group after the other, then the end; the run of the baseline comes first."""
        candidates = self._candidates(0, self._base.recipe)
        base, runs = self._measured(0, self._base, candidates)
        kept = Kept(base, self._base, (base,))
        judged = self._judged(runs, kept, base)
        yield from (base, *judged)
        kept = kept.extended(candidates, judged)
        for number in range(1, len(self._groups)):
            if self._goes_on(base):
                kept, runs = self._group(number, kept)
                yield from runs
        if kept.newest and self._goes_on(base) and _repeats(self._source):
            yield from self._end(kept)

    def _goes_on(self, base: Run) -> bool:
        return base.status == "ok" and not self._session.stopped

    def _candidates(self, number: int, before: Recipe) -> list[Stage]:
        """The stages of a group, each on top of a recipe, and those that are two of them at once."""
        plan = self._source.plan

        def stage(name: str) -> Stage:
            return staging.stage_of(plan, self._source.target, name, before, plan.ladder.changes)

        found = [stage(name) for name in self._groups[number]]
        if plan.rule.rounds < stats.MIN_ROUNDS:  # no verdict could tell which of them to keep
            return found
        acting = {stage.name for stage in found if not stage.reason}
        for name, parts in TOGETHER.items():
            if acting.issuperset(parts) and name not in plan.ladder.stages:
                found.append(stage(name))
        return found

    def _group(self, number: int, kept: Kept) -> tuple[Kept, list[Run]]:
        """Measures the stages of a group next to what is kept; returns what is kept then, and the runs."""
        candidates = self._candidates(number, kept.stage.recipe)
        if all(stage.reason for stage in candidates):  # nothing is measured again for them
            return kept, self._session.measure(candidates, self._source.plan.rule)
        of_kept, of_candidates = self._measured(number, kept.stage, candidates)
        told: list[Run] = []
        if of_kept.status == "failed":
            told = [of_kept]
        elif kept.is_combination:
            kept = kept.measured(of_kept)
            told = list(kept.runs)
        judged = self._judged(of_candidates, kept, of_kept if kept.is_combination else kept.runs[0])
        return kept.extended(candidates, judged), [*told, *judged]

    def _measured(self, number: int, kept: Stage, candidates: Sequence[Stage]) -> tuple[Run, list[Run]]:
        """The run of what is kept so far, and those of candidates that were measured together with it."""
        if self._is_direct and kept is not self._base:
            _, run, *runs = self._in_its_time(number, kept.recipe, [self._base, kept, *candidates])
        else:
            run, *runs = self._in_its_time(number, kept.recipe, [kept, *candidates])
        return run, runs

    def _in_its_time(self, number: int, kept: Recipe, stages: Sequence[Stage]) -> list[Run]:
        """Measures stages in the share of a group, or of the end, of what time is left."""
        rule, later_s = self._time.share(self._sides_from(number, kept))
        with self._session.progress.part(number, len(self._groups) + 1, later_s):
            return self._session.measure(stages, rule)

    def _sides_from(self, number: int, kept: Recipe) -> list[int]:
        """The number of sides of this group, each later one and the end; a slow start counts twice."""
        counts: list[int] = []
        for later in range(number, len(self._groups)):
            acting = [stage.name for stage in self._candidates(later, kept) if not stage.reason]
            parts = [2 if name in DEAR else 1 for name in acting]
            if parts or later == 0:  # the first one has the baseline in any case
                counts.append(1 + sum(parts))
        return [*counts, END_SIDES]

    def _judged(self, runs: Sequence[Run], kept: Kept, previous: Run) -> list[Run]:
        """The runs of a group, compared with what is kept and with the baseline, and their decisions."""
        self._time.note(runs)
        judged = []
        for run in runs:
            pairings = [self._reaching(pairing, kept, previous) for pairing in run.pairings]
            compared = structs.replace(run, pairings=pairings, decision=self._decision(run))
            judged.append(compared if self._is_direct else with_rate_of(compared, kept.base))
        return _chosen(judged)

    def _reaching(self, pairing: Pairing, kept: Kept, previous: Run) -> Pairing:
        """A pairing with what is kept or, by way of what was kept before it, with the baseline."""
        if pairing.role == "previous":
            return structs.replace(pairing, against=previous.id)
        return structs.replace(pairing, against=kept.base.id, via=[] if self._is_direct else list(kept.below))

    def _decision(self, run: Run) -> Decision | None:
        plan = self._source.plan
        ratio = run.speedup("previous")
        if ratio is None:
            return None
        if run.stage in plan.ladder.keep or plan.rule.rounds < stats.MIN_ROUNDS:
            return Decision(True, "plan")
        return Decision(ratio.is_faster, "climb", "" if ratio.is_faster else ratio.verdict)

    def _end(self, kept: Kept) -> Iterator[Run]:
        """Measures everything kept against the baseline, and the baseline against itself."""
        final = replace(kept.stage, name=KEPT, title="everything kept, measured again")
        stages = [self._base, final, staging.again(self._base)]
        first, *runs = self._in_its_time(len(self._groups), kept.stage.recipe, stages)
        if first.status == "failed":
            yield first
        for run in runs:
            pairings = [structs.replace(each, against=kept.base.id) for each in run.pairings]
            remarks = [] if run.is_again else _shortfall(run, kept.newest)
            warnings = [*run.warnings, *remarks]
            yield with_rate_of(structs.replace(run, pairings=pairings, warnings=warnings), kept.base)


class _Time:
    """Divides the time of a ladder among its groups and the end."""

    def __init__(self, rule: StopRule) -> None:
        self._rule = replace(rule, cached=CACHED)
        if rule.goal:  # large effects too: they are multiplied, and people quote them
            self._rule = replace(self._rule, goal=replace(rule.goal, part=0.0))
        self._budget = rule.budget
        self._limit_s = self._budget.ladder_s if self._budget else None
        self._began = time.monotonic()

    def note(self, runs: Sequence[Run]) -> None:
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
    """The recipe that was kept before with the changes of several stages."""
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
            promised = f"'{run.title}' promised ({ratio.ratio:.2f}× of the baseline)"
            yield f"everything kept is slower than {promised}: what helps alone does not help together"


def _repeats(source: Source) -> bool:
    return Study.NOISE not in source.refused and source.plan.rule.rounds >= stats.MIN_ROUNDS
