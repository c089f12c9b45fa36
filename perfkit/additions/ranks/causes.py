"""Known causes of slow or wrong training on several ranks, recognised by what was measured and compared."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from msgspec import structs

from perfkit.additions.advice.finding import Causes, Finding, Found
from perfkit.additions.ranks.lateness import Lateness
from perfkit.additions.ranks.lines import line_of_difference, line_of_share, place
from perfkit.additions.ranks.messages import BUFFERS, PARTS, Ddp, Exchange, State
from perfkit.additions.ranks.report import template
from perfkit.additions.shared.lines import text_at
from perfkit.show import units

_CAUSES = Causes(__name__)
_LEAST = 0.1  # of the time: what takes less is not a cause
_ALWAYS = 0.9  # of the steps: what is called every step
_UNLIKE = 1.15  # how many times as long inputs are to be called so
_FEWEST_ROWS, _FEWEST_EPOCHS = 4, 2
_SAMPLED = {
    "own code": ("own code", "evaluation", "checkpoint", "start"),
    "waiting": ("waiting", "start", "data set", "collate"),
}
"""What parts of a step consist of where stacks are looked at."""
_UNEQUAL = 1.2  # how many times as many rows a step are unequal
_MANY_BUCKETS, _USUAL_BUCKET = 25, 25 << 20  # how many are many; bytes of one by default


@dataclass(frozen=True)
class RankSymptoms:
    """All that was seen of several ranks; `local`: how many run on this machine, whose cores they share."""

    states: Sequence[State]
    lateness: Lateness | None
    local: int
    cores: int
    chose_threads: bool = True  # whether OMP_NUM_THREADS was set by the user: torchrun sets it otherwise
    is_disturbed: bool = False  # whether other programs took so much of the cores that alike ranks may differ

    @property
    def first(self) -> State:
        """Any rank."""
        return self.states[0]


def _weights(seen: RankSymptoms) -> Found:
    steps = sorted(set.intersection(*(set(state.weights) for state in seen.states)))
    equal = [step for step in steps if len({state.weights[step] for state in seen.states}) == 1]
    unlike = [step for step in steps if step not in equal]
    exchanged = any(state.ddps or state.exchanges for state in seen.states)
    if unlike and not exchanged:
        yield _CAUSES.found("nothing_exchanged", _model(seen), ranks=len(seen.states))
    elif unlike and equal and equal[0] < unlike[0]:
        before = f"after step {equal[-1]}" if equal[-1] else "before the first step"
        yield _CAUSES.found("weights_drift", _model(seen), before=before, after=unlike[0])


def _model(seen: RankSymptoms) -> str:
    return place(seen.first.ddps[0].where if seen.first.ddps else next(iter(seen.first.inputs), ""))


def _rows(seen: RankSymptoms) -> Found:
    """The rows that ranks train on, by checksums of their inputs and by what their samplers draw."""
    steps = set.intersection(*(set(state.rows) for state in seen.states))
    told = [step for step in steps if len(set(seen.first.rows[step])) > len(seen.first.rows[step]) / 2]
    rows = sum(len(seen.first.rows[step]) for step in told)
    is_same = all(state.rows[step] == seen.first.rows[step] for state in seen.states for step in told)
    loader = seen.first.loader
    ranks = len(seen.states)
    where = place(loader.where if loader else next(iter(seen.first.inputs), ""))
    are_enough = rows >= _FEWEST_ROWS and len(told) >= 2
    if are_enough and is_same and loader and loader.is_divided:
        yield _CAUSES.found("same_random_rows", where, ranks=ranks, steps=len(told))
    elif are_enough and is_same:
        more = f"; an epoch has {ranks} times as many steps as it needs" if loader and loader.rows else ""
        yield _CAUSES.found("same_rows", where, ranks=ranks, steps=len(told), epochs=more)
    elif loader and loader.rows and _have_all(seen):
        yield _CAUSES.found("all_rows_on_each", where, ranks=ranks, rows=loader.rows)


def _have_all(seen: RankSymptoms) -> bool:
    """Whether each rank draws every row of the same data: the same rows come up on all of them."""
    loaders = [state.loader for state in seen.states]
    rows = {loader.rows for loader in loaders if loader and loader.rows}
    draw_all = all(loader and loader.drawn == loader.rows and not loader.is_divided for loader in loaders)
    if not draw_all or len(rows) != 1:
        return False
    sums = [[each for rows in state.rows.values() for each in rows] for state in seen.states]
    common = set.intersection(*map(set, sums))
    are_told = all(2 * len(set(each)) >= min(len(each), *rows) for each in sums)  # else rows are often equal
    return are_told and len(common) >= max(_FEWEST_ROWS, 0.02 * min(len(set(each)) for each in sums))


def _order(seen: RankSymptoms) -> Found:
    loader = seen.first.loader
    if loader and loader.is_divided and loader.is_shuffled and len(loader.epochs) > _FEWEST_EPOCHS:
        epochs = loader.epochs
        if len(epochs[0]) > _FEWEST_ROWS and all(each == epochs[0] for each in epochs):
            yield _CAUSES.found("same_order", place(loader.where), epochs=len(epochs))


def _batches(seen: RankSymptoms) -> Found:
    if seen.lateness is None or not seen.first.ddps:
        return
    plain = [[step.samples for step in state.steps if not step.marks] for state in seen.states]
    rows = [median(samples or [0]) for samples in plain]
    if min(rows) > 0 and max(rows) >= _UNEQUAL * min(rows):
        fewest, most = (seen.states[rows.index(each)].rank for each in (min(rows), max(rows)))
        where = place(seen.first.loader.where) if seen.first.loader else ""
        yield _CAUSES.found("unequal_batches", where, fewest=fewest, most=most, few=min(rows), many=max(rows))


def _late(seen: RankSymptoms) -> Found:
    found = seen.lateness
    if found is None or found.late is None:
        return
    late = next(state for state in seen.states if state.rank == found.late)
    others = [state for state in seen.states if state is not late]
    where, why = _why(found, late, others)
    if seen.is_disturbed and not where:
        return
    name, waits = _where_they_wait(others, found)
    cause = "late_rank"
    if found.at_times:
        cause = "late_at_times"
    elif name in ("broadcast", "broadcast_object_list", "scatter") and found.part in ("waiting", "own code"):
        cause = "reads_for_all"
    yield _CAUSES.found(
        cause,
        where,
        found.share * len(others) / len(seen.states),  # if its work is divided equally
        rank=found.late,
        often="every step" if found.often >= _ALWAYS else f"{units.percent(found.often)} of the steps",
        by=units.duration(found.by_s),
        step=units.duration(found.step_s),
        why=why,
        lost=units.percent(found.share),
        waits=f", in {waits}" if waits else "",
        few=found.few,
        steps=found.steps,
    )


def _why(found: Lateness, late: State, others: Sequence[State]) -> tuple[str, str]:
    """The place, and what takes longer there on the late rank."""
    words = template("watched.jinja")
    own = next(spent for spent in found.spent if spent.rank == late.rank)
    rest = [spent for spent in found.spent if spent.rank != late.rank]
    usual = fmean(spent.elements for spent in rest)
    computes = found.part in ("forward", "backward")
    if computes and not found.at_times and usual and own.elements >= _UNLIKE * usual:
        where = next(filter(None, map(line_of_share, late.inputs)), "") or next(iter(late.inputs), "")
        return place(where), str(words.larger(own.elements, usual))
    line = line_of_difference(late, others, _SAMPLED.get(found.part, (found.part,)))
    part = PARTS.index(found.part)
    here = own.parts[part]
    there = fmean(spent.parts[part] for spent in rest)
    why = str(words.why(found, text_at(line), here, there))
    is_clear = found.at_times or not computes or here > 2 * there
    return place(line) if is_clear else "", why


def _where_they_wait(others: Sequence[State], found: Lateness) -> tuple[str, str]:
    waited = defaultdict[tuple[str, str], float](float)
    for state in others:
        for exchange in state.exchanges:
            waited[exchange.name, exchange.where] += exchange.seconds / max(1, state.count)
    name, where = max(waited, key=waited.__getitem__, default=("", ""))
    if waited[name, where] > found.share * found.step_s * len(others) / 2:
        return name, f"{name} ({place(where)})"
    lines = [line for state in others for line in state.backward if state.ddps]
    return "backward", f"backward ({place(lines[0])})" if lines else ""


def _in_turn(seen: RankSymptoms) -> Found:
    found = seen.lateness
    if found and found.in_turn >= _LEAST and found.longest >= 0.7:
        where = place(next(iter(seen.first.inputs), ""))
        yield _CAUSES.found("unlike_lengths", where, found.in_turn, longest=units.percent(found.longest))


def _exchange(seen: RankSymptoms) -> Found:
    found, ddps = seen.lateness, seen.first.ddps
    if found is None or len(ddps) != 1:
        return
    size = units.size(ddps[0].bytes)
    share = max(0.0, found.exposed_share - sum(share for _, share in _explicit(seen)))
    syncs = [step.syncs for step in seen.first.steps if step.is_read and step.syncs]
    count = sorted(syncs)[len(syncs) // 2] if syncs else 0
    where = place(next(iter(seen.first.backward), ""))
    if count > 1 and len(seen.first.backward) == 1:
        saved = share * (count - 1) / count
        lost = units.percent(share)
        yield _CAUSES.found("exchange_in_each_pass", where, saved, count=count, size=size, lost=lost)
    elif share >= _LEAST and found.late is None:
        hidden = fmean(spent.hidden for spent in found.spent) / found.step_s
        facts: dict[str, Any] = {"size": size, "backend": ddps[0].backend, "hidden": units.percent(hidden)}
        yield _of_buckets(ddps[0], share) or _CAUSES.found("exposed_exchange", where, share, **facts)


def _of_buckets(ddp: Ddp, share: float) -> Finding | None:
    """How a model's gradients are put together, where that keeps their exchange from being hidden."""
    count = len(ddp.buckets)
    largest = units.size(max(ddp.buckets, default=0))
    facts: dict[str, Any] = {"count": count, "size": units.size(ddp.bytes), "largest": largest}
    if ddp.is_compiled:
        name = "exposed_around_compiled"
    elif count == 1 and ddp.cap > _USUAL_BUCKET:
        name = "exposed_in_one_bucket"
    elif count >= _MANY_BUCKETS and ddp.cap < _USUAL_BUCKET:
        name = "exposed_in_many_buckets"
    else:
        return None
    return _CAUSES.found(name, place(ddp.where), share, **facts)


def _models(seen: RankSymptoms) -> Found:
    """What models are like; none of what only GPUs have has been seen to happen on one."""
    gpus = [state.gpu for state in seen.states if state.gpu]
    ddps = seen.first.ddps
    for ddp in ddps:
        if ddp.needs_no_search:
            yield _CAUSES.found("unused_parameters", place(ddp.where))
    shared = [gpu for gpu in gpus if gpus.count(gpu) > 1]
    if shared:
        yield _CAUSES.found("ranks_share_a_gpu", _model(seen), ranks=gpus.count(shared[0]), gpu=shared[0])
    if gpus and any(ddp.backend == "gloo" for ddp in ddps):
        yield _CAUSES.found("gloo_on_gpus", _model(seen))
    layers = sum(ddp.sync_norms for ddp in ddps)
    if layers:
        yield _CAUSES.found("sync_batch_norm", _model(seen), layers=layers)


def _explicit(seen: RankSymptoms) -> Iterator[tuple[Exchange, float]]:
    """Collectives that the script calls, and the share of a step that no late rank explains."""
    if seen.lateness is None:
        return
    known = [{(each.name, each.where): each for each in state.exchanges} for state in seen.states]
    for key in set.intersection(*map(set, known)):
        pairs = zip(known, seen.states, strict=True)
        step_s = min(each[key].seconds / max(1, state.count) for each, state in pairs)
        yield known[0][key], step_s / seen.lateness.step_s


def _collectives(seen: RankSymptoms) -> Found:
    for exchange, share in _explicit(seen):
        is_in_each = exchange.count >= 0.9 * seen.first.count > 0
        if not is_in_each or share < _LEAST / 2 or exchange.name in ("send", "recv", "batch_isend_irecv"):
            continue
        if exchange.name == "all_reduce" and not seen.first.ddps:
            count = round(exchange.count / seen.first.count)
            yield _CAUSES.found("averaged_by_hand", place(exchange.where), share, count=count)
        elif exchange.name == BUFFERS:
            buffers = sum(ddp.buffers for ddp in seen.first.ddps)
            yield _CAUSES.found("buffers_in_each_step", _model(seen), share, buffers=buffers)
        else:
            yield _CAUSES.found("collective_in_each_step", place(exchange.where), share, name=exchange.name)


def _cores(seen: RankSymptoms) -> Found:
    threads = seen.cores // max(1, seen.local)
    facts: dict[str, Any] = {"ranks": seen.local, "cores": seen.cores}
    have_one = all(state.is_of_agent and state.threads == 1 for state in seen.states)
    late = seen.lateness
    starves = late is not None and max(spent.parts[0] for spent in late.spent) >= _LEAST * late.step_s
    if have_one and not seen.chose_threads and threads >= 2 and (seen.first.device == "cpu" or starves):
        yield _CAUSES.found("threads_of_ranks", threads=threads, **facts)
    loader = seen.first.loader
    if loader and loader.workers * seen.local > seen.cores:
        found = _CAUSES.found("workers_of_ranks", place(loader.where), workers=loader.workers, **facts)
        yield found if starves else structs.replace(found, urgency=0.0)  # it costs nothing


CAUSES: tuple[Callable[[RankSymptoms], Found], ...] = (
    _weights, _rows, _order, _batches, _late, _in_turn, _exchange, _collectives, _models, _cores,
)  # fmt: skip


def findings(seen: RankSymptoms) -> list[Finding]:
    """What is avoidable, the largest first."""
    found = [finding for cause in CAUSES for finding in cause(seen)]
    return sorted(found, key=lambda finding: -finding.weight)
