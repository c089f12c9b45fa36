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
from perfkit.results import Comparison, Run, RunStore, continued, keep, rated, stats
from perfkit.rules import joined
from perfkit.studies import staging
from perfkit.studies.sources import Plan, Progress, Source, Study


class Candidate(NamedTuple):
    """One side of a comparison: what the source trains by itself, with some switches on top."""

    title: str
    changes: Mapping[str, Value] = MappingProxyType({})


def candidate(text: str, plan: Plan) -> Candidate:
    """One side: a stage of the ladder, or `switch=value,…` on top of the baseline."""
    if "=" in text:
        return Candidate(text, parse_settings(text.split(",")))
    if text not in OPTIMIZATIONS:
        raise one_of(text, list(OPTIMIZATIONS), "stage", see=", or settings such as workers=2,amp=bf16")
    above = () if text == "baseline" else (text,)
    stage = staging.acting(staging.described(plan.trying(stages=above, below=True), load=True))
    return Candidate(stage.title, stage.recipe.to_dict())


def compare_candidates(
    a: Candidate,
    b: Candidate,
    plan: Plan,
    earlier: Comparison | None = None,
    progress: Progress | None = None,
    store: RunStore | None = None,
) -> Comparison:
    """Measures B and A in rounds, in several incarnations, until the interval is narrow.

    The plan says where, and for how long (`Plan.until`). Stopped by a person, it gives what was measured
    until then. The rounds are added to those of an `earlier` comparison of the same two. The `store` keeps
    the runs, and knows how far equal processes differ; what it cannot keep is in its `lost`.
    """
    with plan.open(progress or Progress(), Study.COMPARISON, store) as source:
        return compare_by(source, a, b, plan.rule, earlier)


def compare_by(
    source: Source, a: Candidate, b: Candidate, rule: StopRule, earlier: Comparison | None = None
) -> Comparison:
    """Measures B and A as `compare_candidates` does, by a source that is entered."""
    rule = replace(rule, rounds=max(stats.MIN_ROUNDS, rule.rounds), cached=0)
    pair = source.measure(stages_of(a, b, source), rule)
    if not all(run.status == "ok" for run in pair):
        raise _failure(pair, source.store)
    if earlier:
        first = continued(earlier.a, pair[0])
        pair = [first, rated(continued(earlier.b, pair[1]), first)]
    keep(source.store, *pair)
    return compared(*pair)


def earlier_comparison(a: Candidate, b: Candidate, plan: Plan, store: RunStore) -> Comparison:
    """The newest stored comparison of these two sides, to which more rounds are to be added.

    It has the same code, recipes, options, preset, seed, device and machine; an `InvalidValue` if none has.
    """
    source = staging.described(plan, load=True)
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
    """Both sides as stages, with two names; a side with a switch that cannot act here is refused."""
    titles = (a.title, f"{b.title} (again)" if b.title == a.title else b.title)
    recipes = [source.baseline().replace(**side.changes) for side in (a, b)]
    stages = staging.recipe_stages(zip(titles, recipes, strict=True), source.target)
    for side, stage in zip((a, b), stages, strict=True):
        refused = {name: why for name, why in stage.not_applied.items() if name in side.changes}
        if refused:
            raise InvalidValue(f"{side.title} cannot be compared here: {joined(refused)}", "Leave that out")
    return stages


def _is_of(run: Run, stage: Stage, source: Source, machine_id: str) -> bool:
    """Whether a run measured a stage as a source would measure it now."""
    subject = source.plan.subject
    now: list[Any] = [stage.name, stage.recipe.to_dict(), subject.workload, source.description.options]
    now += [subject.code, subject.size.name, subject.seed, subject.device, machine_id]
    then: list[Any] = [run.stage, run.recipe, run.workload, run.options]
    then += [run.code, run.preset, run.seed, run.device, run.machine.get("id")]
    return run.status == "ok" and json.dumps(then, sort_keys=True) == json.dumps(now, sort_keys=True)


def compared(a: Run, b: Run) -> Comparison:
    """The comparison of two runs that were measured together: B with the one before it."""
    pairing = b.pairing("previous")
    assert pairing, "every side of a measurement is compared with the first one"
    return Comparison(a, b, pairing)


def _failure(pair: Sequence[Run], store: RunStore | None) -> PerfkitError:
    """Why two runs cannot be compared; the one that failed is kept."""
    run = next(run for run in pair if run.status != "ok")
    if run.status == "cancelled":
        return Cancelled(f"stopped before {run.title} was measured")
    keep(store, run)
    return PerfkitError(f"{run.title} could not be compared: {run.reason}", "Fix it, then try again")
