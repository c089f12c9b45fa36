"""Known causes of slow or wrong training on several ranks, recognised by what was measured and compared."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os.path import basename
from statistics import fmean

import numpy as np
from msgspec import structs

from perfkit.additions.advice.finding import Causes, Finding, Found
from perfkit.additions.ranks.lateness import COMPUTES, Lateness, are_apart, few_with_most
from perfkit.additions.ranks.lines import line_of_difference, line_of_most, line_of_share
from perfkit.additions.ranks.messages import BUFFERS, LIMIT, PARTS, Ddp, Exchange, State
from perfkit.additions.ranks.report import WORDS
from perfkit.additions.shared.lines import text_at

_CAUSES = Causes(__name__)


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
    for ddp in seen.first.ddps:
        if ddp.unknown and (unlike or not steps):  # else the script exchanges them itself
            yield _CAUSES.found("unknown_parameters", basename(ddp.where), names=ddp.unknown, unlike=unlike)
            return
    if unlike and not exchanged:
        yield _CAUSES.found("nothing_exchanged", _model(seen), ranks=len(seen.states))
    elif unlike and equal and equal[0] < unlike[0] and not are_apart(seen.states):
        last = max(step for step in equal if step < unlike[0])  # they may have become equal again since
        before = f"after step {last}" if last else "before the first step"
        yield _CAUSES.found("weights_drift", _model(seen), before=before, after=unlike[0])


def _model(seen: RankSymptoms) -> str:
    return basename(seen.first.ddps[0].where if seen.first.ddps else next(iter(seen.first.inputs), ""))


def _apart(seen: RankSymptoms) -> Found:
    if are_apart(seen.states):
        first, *_, last = sorted(seen.states, key=lambda state: state.count)
        share = 1 - fmean(state.count for state in seen.states) / last.count
        where = basename(first.loader.where) if first.loader else ""
        yield _CAUSES.found("uneven_batches", where, share, first=first, last=last)


def _rows(seen: RankSymptoms) -> Found:
    """The rows that ranks train on, by checksums of their inputs and by what their samplers draw."""
    steps = set.intersection(*(set(state.rows) for state in seen.states))
    told = [step for step in steps if len(set(seen.first.rows[step])) > len(seen.first.rows[step]) / 2]
    rows = sum(len(seen.first.rows[step]) for step in told)
    is_same = all(state.rows[step] == seen.first.rows[step] for state in seen.states for step in told)
    loader = seen.first.loader
    ranks = len(seen.states)
    where = basename(loader.where if loader else next(iter(seen.first.inputs), ""))
    are_enough = rows >= LIMIT.fewest_rows and len(told) >= 2
    if are_enough and is_same and loader and loader.is_divided:
        yield _CAUSES.found("same_random_rows", where, ranks=ranks, steps=len(told))
    elif are_enough and is_same:
        yield _CAUSES.found("same_rows", where, ranks=ranks, steps=len(told), loader=loader)
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
    return are_told and len(common) >= max(LIMIT.fewest_rows, 0.02 * min(len(set(each)) for each in sums))


def _order(seen: RankSymptoms) -> Found:
    loader = seen.first.loader
    if loader and loader.is_divided and loader.is_shuffled and len(loader.epochs) > LIMIT.fewest_epochs:
        epochs = loader.epochs
        if len(epochs[0]) > LIMIT.fewest_rows and all(each == epochs[0] for each in epochs):
            yield _CAUSES.found("same_order", basename(loader.where), epochs=len(epochs))


def _batches(seen: RankSymptoms) -> Found:
    if seen.lateness is None or not seen.first.ddps:
        return
    fewest, *_, most = sorted(seen.lateness.spent, key=lambda spent: spent.rows)
    if 0 < LIMIT.unequal * fewest.rows <= most.rows:
        where = basename(seen.first.loader.where) if seen.first.loader else ""
        told = _CAUSES.found("unequal_batches", where, fewest=fewest, most=most)
        is_meant = most.elements < LIMIT.unlike * fewest.elements  # fewer and longer rows
        yield structs.replace(told, urgency=LIMIT.may_be_meant) if is_meant else told


def _late(seen: RankSymptoms) -> Found:
    found = seen.lateness
    if found is None or found.late is None:
        return
    late = next(state for state in seen.states if state.rank == found.late)
    others = [state for state in seen.states if state is not late]
    where, why = _why(found, late, others, seen.is_disturbed)
    if seen.is_disturbed and not where:
        return
    exchange, waits = _where_they_wait(others, found)
    cause = "late_rank"
    if found.at_times:
        cause = "late_at_times"
    elif exchange and exchange.name in LIMIT.hands_out and found.part in ("waiting", "own code"):
        are_few = 0 < exchange.bytes < late.told * found.spent[0].elements  # no rows, such as a flag
        cause = "late_rank" if are_few else "reads_for_all"
    must_stay = found.has_more_to_compute or cause == "reads_for_all"  # it can only be divided
    saved = found.share_of_equal if must_stay else found.share
    modes = [mode for mode in late.modes if not any(mode in state.modes for state in others)]
    in_hook = found.part == "backward" and bool(where) and where not in map(basename, late.backward)
    about = {"late": found, "why": why, "waits": waits, "loader": late.loader, "exchange": exchange}
    yield _CAUSES.found(cause, where, saved, modes=modes, in_hook=in_hook, **about)


def _why(found: Lateness, late: State, others: Sequence[State], is_disturbed: bool) -> tuple[str, str]:
    if found.has_more_to_compute:
        elements = found.compared(lambda spent: spent.elements)
        rows = found.compared(lambda spent: spent.rows)
        calls = [*late.inputs, *([late.loader.where] if late.loader else [])]
        line = next(filter(None, map(line_of_share, calls)), "") or next(iter(calls), "")
        return basename(line), str(WORDS.unlike(elements, rows))
    line = line_of_difference(late, others, LIMIT.sampled.get(found.part, (found.part,)))
    part = PARTS.index(found.part)
    here, there = found.compared(lambda spent: spent.parts[part])
    # A rank that has less of the cores is slower in whatever it does, but seldom by this much.
    is_chance = here <= 2 * there and (is_disturbed or found.part in COMPUTES)
    where = line if found.at_times or not is_chance else ""
    return basename(where), str(WORDS.why(found, text_at(where), here, there))


def _where_they_wait(others: Sequence[State], found: Lateness) -> tuple[Exchange | None, str]:
    waits = [(each.seconds / state.told, each) for state in others for each in state.exchanges]
    seconds, exchange = max(waits, key=lambda each: each[0], default=(0.0, None))
    if exchange and seconds > found.share * found.step_s / 2:
        return exchange, f", in {exchange.name} ({basename(exchange.where)})"
    lines = [line for state in others for line in state.backward if state.ddps]
    return None, f", in backward ({basename(lines[0])})" if lines else ""


def _in_turn(seen: RankSymptoms) -> Found:
    found = seen.lateness
    if found and found.in_turn >= LIMIT.least / 2 and found.longest >= 0.7:
        where = basename(next(iter(seen.first.inputs), ""))
        yield _CAUSES.found("unlike_lengths", where, found.in_turn, longest=found.longest)


def _alike(seen: RankSymptoms) -> Found:
    """Work that every rank repeats. With a GPU the host may only be waiting for it, so nothing is said."""
    found = seen.lateness
    if found is None or seen.first.device != "cpu":
        return
    for part, cause in (("waiting", "all_wait_for_data"), ("own code", "all_do_the_same")):
        at = PARTS.index(part)
        told = [line_of_most(state, LIMIT.by_itself[part]) for state in seen.states]
        line, share = min(told, key=lambda each: each[1])
        if any(other != line for other, _ in told):
            continue
        if part == "own code":  # looks scatter: a line takes no more than its part of a mean step
            share = min(share, *(spent.parts[at] / found.step_s for spent in found.spent))
        steps = [s for s in seen.first.steps if s.number > LIMIT.skipped and "evaluation" not in s.marks]
        few = [steps[n] for n in few_with_most(np.array([step.parts[at] for step in steps]))]
        begins = 2 * sum("new epoch" in step.marks for step in few) > len(few)
        if share >= (LIMIT.least if few or part == "waiting" else LIMIT.least_of_own):
            about = {"loader": seen.first.loader, "few": len(few), "steps": len(steps), "begins": begins}
            made = [each.name for each in seen.first.exchanges if each.where == line]
            yield _CAUSES.found(
                cause, basename(line), share, text=text_at(line), late=found, made=made, **about
            )


def _exchange(seen: RankSymptoms) -> Found:
    found, ddps = seen.lateness, seen.first.ddps
    if found is None or len(ddps) != 1:
        return
    ddp = ddps[0]
    share = max(0.0, found.exposed_share - sum(share for _, share in _explicit(seen)))
    syncs = [step.syncs for step in seen.first.steps if step.is_read and step.syncs]
    count = sorted(syncs)[len(syncs) // 2] if syncs else 0
    where = basename(next(iter(seen.first.backward), ""))
    if count > 1 and len(seen.first.backward) == 1:
        saved = share * (count - 1) / count
        yield _CAUSES.found("exchange_in_each_pass", where, saved, count=count, ddp=ddp, lost=share)
    elif share >= LIMIT.least and (found.late is None or seen.is_disturbed):  # which may be no late rank
        hidden = fmean(spent.hidden for spent in found.spent) / found.step_s
        rows = seen.first.embeddings
        are_few = rows and rows.of_weights > LIMIT.mostly and rows.touched < LIMIT.few_rows * rows.count
        cause = "exposed_in_embeddings" if are_few else _of_buckets(ddp)
        at = basename(ddp.where) if cause in LIMIT.of_the_wrapper else where
        yield _CAUSES.found(cause, at, share, ddp=ddp, hidden=hidden, rows=rows)


def _of_buckets(ddp: Ddp) -> str:
    """The cause that keeps gradients from being sent while backward continues."""
    if ddp.is_compiled:
        return "exposed_around_compiled"
    if len(ddp.buckets) == 1 and ddp.cap > LIMIT.usual_bucket:
        return "exposed_in_one_bucket"
    are_many = len(ddp.buckets) >= LIMIT.many_buckets and ddp.cap < LIMIT.usual_bucket
    return "exposed_in_many_buckets" if are_many else "exposed_exchange"


def _models(seen: RankSymptoms) -> Found:
    gpus = [state.gpu for state in seen.states if state.gpu]
    for ddp in seen.first.ddps:
        if ddp.needs_no_search:
            yield _CAUSES.found("unused_parameters", basename(ddp.where))
    if shared := [gpu for gpu in gpus if gpus.count(gpu) > 1]:
        yield _CAUSES.found("ranks_share_a_gpu", _model(seen), ranks=gpus.count(shared[0]), gpu=shared[0])
    if gpus and any(ddp.backend == "gloo" for ddp in seen.first.ddps):
        yield _CAUSES.found("gloo_on_gpus", _model(seen))
    if layers := sum(ddp.sync_norms for ddp in seen.first.ddps):
        yield _CAUSES.found("sync_batch_norm", _model(seen), layers=layers)


def _explicit(seen: RankSymptoms) -> Iterator[tuple[Exchange, float]]:
    """Collectives that the script calls, and the share of a step that no late rank explains."""
    if seen.lateness is None:
        return
    known = [{(each.name, each.where): each for each in state.exchanges} for state in seen.states]
    for key, exchange in known[0].items():
        if not all(key in each for each in known):
            continue
        pairs = zip(known, seen.states, strict=True)
        step_s = min(each[key].seconds / state.told for each, state in pairs)
        yield exchange, min(step_s / seen.lateness.step_s, seen.lateness.exposed_share)


def _collectives(seen: RankSymptoms) -> Found:
    for exchange, share in _explicit(seen):
        about = {"exchange": exchange, "steps": seen.first.told}
        is_in_each = exchange.count >= 0.9 * seen.first.told
        if not is_in_each or share < LIMIT.least / 2 or exchange.name in LIMIT.between_two:
            continue
        if exchange.name == "all_reduce" and (cause := _of_all_reduce(seen, exchange)):
            yield _CAUSES.found(cause, basename(exchange.where), share, **about)
        elif exchange.name == BUFFERS:
            buffers = {name: size for ddp in seen.first.ddps for name, size in ddp.buffers.items()}
            yield _CAUSES.found("buffers_in_each_step", _model(seen), share, buffers=buffers)
        else:
            yield _CAUSES.found("collective_in_each_step", basename(exchange.where), share, **about)


def _of_all_reduce(seen: RankSymptoms, exchange: Exchange) -> str:
    """What calls of it that come in each step are, by what they send; empty for a single number."""
    steps, ddps = seen.first.told, seen.first.ddps
    if exchange.bytes <= LIMIT.small * exchange.count:
        return "sent_one_by_one" if exchange.count > 1.5 * steps else ""
    if not ddps:
        return "averaged_by_hand"
    gradients = max(1, sum(ddp.bytes for ddp in ddps))
    are_gradients = abs(exchange.bytes / steps / gradients - 1) < LIMIT.as_many
    return "averaged_twice" if are_gradients and any(step.syncs for step in seen.first.steps) else ""


def _cores(seen: RankSymptoms) -> Found:
    threads = seen.cores // max(1, seen.local)
    have_one = all(state.is_of_agent and state.threads == 1 for state in seen.states)
    late = seen.lateness
    starves = late is not None and max(spent.parts[0] for spent in late.spent) >= LIMIT.least * late.step_s
    if have_one and not seen.chose_threads and threads >= 2 and (seen.first.device == "cpu" or starves):
        yield _CAUSES.found("threads_of_ranks", threads=threads, seen=seen)
    loader = seen.first.loader
    if loader and loader.workers * seen.local > seen.cores:
        found = _CAUSES.found("workers_of_ranks", basename(loader.where), loader=loader, seen=seen)
        yield found if starves else structs.replace(found, urgency=0.0)  # it costs nothing


def _process(seen: RankSymptoms) -> Found:
    """A process in which more computes than its training, as a thread that never rests."""
    *others, most = sorted(seen.states, key=lambda state: state.cpu_s / state.told)
    usual = fmean(state.cpu_s / state.told for state in others)
    more = most.cpu_s / most.told - usual
    late = seen.lateness
    if late and late.late != most.rank and more > max(usual / 2, LIMIT.least_of_own * late.step_s):
        yield _CAUSES.found("busy_process", rank=most.rank, more=more, usual=usual)


CAUSES: tuple[Callable[[RankSymptoms], Found], ...] = (
    _weights, _apart, _rows, _order, _batches, _late, _in_turn, _alike, _exchange, _collectives, _models,
    _process, _cores,
)  # fmt: skip


def findings(seen: RankSymptoms) -> list[Finding]:
    """What is avoidable, the largest first."""
    found = [finding for cause in CAUSES for finding in cause(seen)]
    told = {each.where for each in found if each.cause == "all_do_the_same"}  # with what is exchanged there
    found = [each for each in found if each.where not in told or not each.cause.startswith("collective")]
    return sorted(found, key=lambda finding: -finding.weight)
