"""Two recipes, interleaved until their ratio is known precisely enough, or two stored runs."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from perfkit.errors import Cancelled, InvalidValue, PerfkitError, one_of
from perfkit.ladder.catalogue import OPTIMIZATIONS, Stage, StopRule
from perfkit.recipe import Value, parse_settings
from perfkit.results import Comparison, Run, RunStore, continued, keep, stats, warning_store, with_rate_of
from perfkit.rules import joined
from perfkit.studies import planning, staging
from perfkit.studies.sources import Plan, Progress, Source, Study


class Candidate(NamedTuple):
    """One side of a comparison: what the source trains by itself, with some switches on top."""

    title: str
    changes: Mapping[str, Value] = MappingProxyType({})
    program: Any = None  # what is trained in place of the source's own program: see `Stage`


def candidate(text: str, plan: Plan) -> Candidate:
    """One side: a stage of the ladder, or `switch=value,…` on top of the baseline."""
    if "=" in text:
        return Candidate(text, parse_settings(text.split(",")))
    if text not in OPTIMIZATIONS:
        raise one_of(text, list(OPTIMIZATIONS), "stage", see=", or settings such as workers=2,amp=bf16")
    above = () if text == "baseline" else (text,)
    stage = staging.acting(staging.loaded(plan.trying(stages=above, below=True)))
    return Candidate(stage.title, stage.recipe.to_dict())


def compare(a: str, b: str, plan: Plan | None = None, progress: Progress | None = None) -> Comparison:
    """Measures how many times as fast B is as A, stages or settings (`workers=2,amp=bf16`); stores both.

    Without a `plan`, it measures on this machine for as long as `perfkit compare` does.
    """
    plan = plan or planning.plan().until()
    sides = candidate(a, plan), candidate(b, plan)
    with warning_store() as store:
        return compare_candidates(*sides, plan, progress=progress, store=store)


def compare_candidates(
    a: Candidate,
    b: Candidate,
    plan: Plan,
    earlier: Comparison | None = None,
    progress: Progress | None = None,
    store: RunStore | None = None,
) -> Comparison:
    """Measures B and A in rounds, in several incarnations, until the interval is narrow.

    The plan says where, and for how long (`Plan.until`). If the user stops it, it returns what has been
    measured so far; after Ctrl-C, `progress` has it. The rounds are added to those of an `earlier` comparison
    of the same two. Runs are saved in `store`, which knows how far equal processes differ.
    """
    progress = progress or Progress()
    with plan.open(progress, Study.COMPARISON, store) as session:
        pair = session.measure(stages_of(a, b, session.source), rule_of_two(plan.rule))
        result = compared(pair, store, earlier)
        progress.found = result
        return result


def rule_of_two(rule: StopRule) -> StopRule:
    """The rule of a comparison: enough rounds for a verdict, and no slice on a cached batch."""
    return replace(rule, rounds=max(stats.MIN_ROUNDS, rule.rounds), cached=0)


def compared(pair: Sequence[Run], store: RunStore | None, earlier: Comparison | None = None) -> Comparison:
    """The comparison of A and B, measured together, with the rounds of the earlier one; both are kept."""
    if not all(run.status == "ok" for run in pair):
        raise _failure(pair, store)
    a, b = pair
    if earlier:
        a = continued(earlier.a, a)
        b = with_rate_of(continued(earlier.b, b), a)
    keep(store, a, b)
    pairing = b.pairing("previous")
    assert pairing, "every side of a measurement is compared with the first one"
    return Comparison(a, b, pairing)


def earlier_comparison(a: Candidate, b: Candidate, plan: Plan, store: RunStore) -> Comparison:
    """The newest stored comparison of these two, measured in the same way; an `InvalidValue` without one."""
    source = staging.loaded(plan)
    first, second = stages_of(a, b, source)
    for run in store.history(workload=plan.subject.workload):
        pairing = run.pairing("previous")
        if pairing is None or not _is_of(run, second, source, store.machine_id):
            continue
        with contextlib.suppress(InvalidValue):  # the run that it was compared with is deleted
            other = store.get(pairing.against)
            if _is_of(other, first, source, store.machine_id):
                return Comparison(other, run, pairing)
    what = f"no comparison of {second.title} with {first.title} is stored that was measured in the same way"
    what += ", and of the same code"
    raise InvalidValue(what, "Compare them first, without --more")


def stages_of(a: Candidate, b: Candidate, source: Source) -> list[Stage]:
    """Both sides as stages, with two names. Refuses a switch that cannot act here or is set already."""
    titles = (a.title, f"{b.title} (again)" if b.title == a.title else b.title)
    recipes = [source.baseline().replace(**side.changes) for side in (a, b)]
    stages = staging.recipe_stages(zip(titles, recipes, strict=True), source.target)
    for side, stage in zip((a, b), stages, strict=True):
        refused = {name: why for name, why in stage.not_applied.items() if name in side.changes}
        if refused:
            raise InvalidValue(f"{side.title} cannot be compared here: {joined(refused)}", "Leave that out")
    is_meant = a.changes == b.changes or a.program != b.program  # two equal sides show how far runs differ
    if stages[0].recipe == stages[1].recipe and not is_meant:
        raise InvalidValue(f"{a.title} and {b.title} have the same switches", "Choose another value")
    return [replace(stage, program=side.program) for side, stage in zip((a, b), stages, strict=True)]


def _is_of(run: Run, stage: Stage, source: Source, machine_id: str) -> bool:
    """Whether a run measured a stage as a source would measure it now."""
    subject = source.plan.subject
    now: list[Any] = [stage.name, stage.recipe.to_dict(), subject.workload, source.description.options]
    now += [subject.code, subject.size.name, subject.seed, subject.device, machine_id]
    then: list[Any] = [run.stage, run.recipe, run.workload, run.options]
    then += [run.code, run.preset, run.seed, run.device, run.machine.get("id")]
    return run.status == "ok" and json.dumps(then, sort_keys=True) == json.dumps(now, sort_keys=True)


def _failure(pair: Sequence[Run], store: RunStore | None) -> PerfkitError:
    """Why two runs cannot be compared; the one that failed is kept."""
    run = next(run for run in pair if run.status != "ok")
    if run.status == "cancelled":
        return Cancelled(f"stopped before {run.title} was measured")
    keep(store, run)
    return PerfkitError(f"{run.title} could not be compared: {run.reason}", "Fix it, then try again")
