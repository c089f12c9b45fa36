"""Known causes of slow or wrong training on several ranks, recognised by what was measured and compared."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os.path import basename
from statistics import fmean
from typing import Any

import numpy as np
from msgspec import structs

from perfkit.additions.advice.finding import Causes, Finding, Found
from perfkit.additions.ranks.lateness import COMPUTES, Lateness, are_apart, few_with_most
from perfkit.additions.ranks.lines import (
    line_of_difference,
    line_of_most,
    line_of_share,
    line_within,
    share_of_line,
)
from perfkit.additions.ranks.messages import BUFFERS, LIMIT, PARTS, Ddp, Exchange, State
from perfkit.additions.ranks.report import WORDS
from perfkit.additions.shared.positions import text_at

_CAUSES = Causes(__name__)


@dataclass(frozen=True)
class RankSymptoms:
    """All measurements of several ranks; `local` of them run on this machine and share its cores."""

    states: Sequence[State]
    lateness: Lateness | None
    local: int
    cores: int
    chose_threads: bool = True  # whether the user set OMP_NUM_THREADS: torchrun sets it otherwise
    is_disturbed: bool = False  # whether other programs took so much of the cores that equal ranks may differ

    @property
    def first(self) -> State:
        """Any rank."""
        return self.states[0]


def _unequal_weights(symptoms: RankSymptoms) -> Found:
    steps = sorted(set.intersection(*(set(state.weights) for state in symptoms.states)))
    equal = [step for step in steps if len({state.weights[step] for state in symptoms.states}) == 1]
    unlike = [step for step in steps if step not in equal]
    has_exchanges = any(state.ddps or state.exchanges for state in symptoms.states)
    for ddp in symptoms.first.ddps:
        if ddp.unknown and (unlike or not steps):  # else the script exchanges them itself
            yield _CAUSES.found("unknown_parameters", basename(ddp.where), names=ddp.unknown, unlike=unlike)
            return
    if unlike and not has_exchanges:
        yield _CAUSES.found("nothing_exchanged", _model_line(symptoms), ranks=len(symptoms.states))
    elif unlike and equal and equal[-1] < unlike[0] and not are_apart(symptoms.states):  # else it averages
        before = f"after step {equal[-1]}" if equal[-1] else "before the first step"
        yield _CAUSES.found("weights_drift", _model_line(symptoms), before=before, after=unlike[0])


def _with_caller(line: str, caller: str) -> str:
    return ", called in ".join(map(basename, dict.fromkeys((line, caller))))


def _model_line(symptoms: RankSymptoms) -> str:
    """The line that wraps the first model, or else, or if that sends nothing, the first one that calls it."""
    first = symptoms.first
    if first.ddps and not first.ddps[0].sent and first.backward and first.forward:
        return _with_caller(first.forward[0], first.forward[-1])
    return basename(first.ddps[0].where if first.ddps else next(iter(first.inputs), ""))


def _uneven_batches(symptoms: RankSymptoms) -> Found:
    if are_apart(symptoms.states):
        first, *_, last = sorted(symptoms.states, key=lambda state: state.count)
        share = 1 - fmean(state.count for state in symptoms.states) / last.count
        where = basename(first.loader.where) if first.loader else ""
        yield _CAUSES.found("uneven_batches", where, share, first=first, last=last)


def _shared_rows(symptoms: RankSymptoms) -> Found:
    """Rows that several ranks train on, by the checksums of their inputs and the sizes of their samplers."""
    first = symptoms.first
    steps = set.intersection(*(set(state.rows) for state in symptoms.states))
    varied = [step for step in steps if len(set(first.rows[step])) > len(first.rows[step]) / 2]
    rows = sum(len(first.rows[step]) for step in varied)
    are_same = all(state.rows[step] == first.rows[step] for state in symptoms.states for step in varied)
    loader = first.loader
    ranks = len(symptoms.states)
    where = basename(loader.where if loader else next(iter(first.inputs), ""))
    are_enough = rows >= LIMIT.fewest_rows and len(varied) >= 2
    if are_enough and are_same and loader and loader.is_divided:
        yield _CAUSES.found("same_random_rows", where, ranks=ranks, steps=len(varied))
    elif are_enough and are_same:
        yield _CAUSES.found("same_rows", where, ranks=ranks, steps=len(varied), loader=loader)
    elif loader and loader.rows and _draw_all_rows(symptoms):
        yield _CAUSES.found("all_rows_on_each", where, ranks=ranks, rows=loader.rows)


def _draw_all_rows(symptoms: RankSymptoms) -> bool:
    """Whether each rank draws every row of the same data: the same rows come up on all ranks."""
    loaders = [state.loader for state in symptoms.states]
    sizes = {loader.rows for loader in loaders if loader and loader.rows}
    draw_all = all(loader and loader.drawn == loader.rows and not loader.is_divided for loader in loaders)
    if not draw_all or len(sizes) != 1:
        return False
    sums_by_rank = [[row for rows in state.rows.values() for row in rows] for state in symptoms.states]
    are_varied = all(2 * len(set(sums)) >= min(len(sums), *sizes) for sums in sums_by_rank)
    common = set.intersection(*map(set, sums_by_rank))
    fewest = min(len(set(sums)) for sums in sums_by_rank)
    return are_varied and len(common) >= max(LIMIT.fewest_rows, 0.02 * fewest)


def _same_order(symptoms: RankSymptoms) -> Found:
    loader = symptoms.first.loader
    if loader and loader.is_divided and loader.is_shuffled and len(loader.epochs) > LIMIT.fewest_epochs:
        epochs = loader.epochs
        if len(epochs[0]) > LIMIT.fewest_rows and all(epoch == epochs[0] for epoch in epochs):
            yield _CAUSES.found("same_order", basename(loader.where), epochs=len(epochs))


def _unequal_batches(symptoms: RankSymptoms) -> Found:
    if symptoms.lateness is None or not symptoms.first.ddps:
        return
    fewest, *_, most = sorted(symptoms.lateness.spent, key=lambda mean: mean.rows)
    if 0 < LIMIT.unequal * fewest.rows <= most.rows:
        where = basename(symptoms.first.loader.where) if symptoms.first.loader else ""
        finding = _CAUSES.found("unequal_batches", where, fewest=fewest, most=most)
        is_meant = most.elements < LIMIT.unlike * fewest.elements  # fewer and longer rows
        yield structs.replace(finding, urgency=LIMIT.may_be_meant) if is_meant else finding


def _late_rank(symptoms: RankSymptoms) -> Found:
    lateness = symptoms.lateness
    if lateness is None or lateness.late is None:
        return
    late = next(state for state in symptoms.states if state.rank == lateness.late)
    others = [state for state in symptoms.states if state is not late]
    where, why = _why(lateness, late, others, symptoms.is_disturbed)
    if symptoms.is_disturbed and not where:
        return
    exchange, waits = _where_they_wait(others, lateness)
    cause = "late_rank"
    if lateness.at_times:
        cause = "late_at_times"
    elif exchange and exchange.name in LIMIT.hands_out and lateness.part in ("waiting", "own code"):
        is_flag = 0 < exchange.bytes < late.covered_steps * lateness.spent[0].elements  # too small for rows
        cause = "late_rank" if is_flag else "reads_for_all"
    must_stay = lateness.has_more_to_compute or cause == "reads_for_all"  # it can only be divided
    share = lateness.share_of_equal if must_stay else lateness.share
    modes = [mode for mode in late.modes if not any(mode in state.modes for state in others)]
    in_hook = lateness.part == "backward" and bool(where) and where not in map(basename, late.backward)
    facts = {"late": lateness, "why": why, "waits": waits, "loader": late.loader, "exchange": exchange}
    remedy = _remedy(late, lateness.part)
    yield _CAUSES.found(cause, where, share, modes=modes, in_hook=in_hook, remedy=remedy, **facts)


def _remedy(state: State, part: str) -> str:
    """What helps against a part that is mostly in a known library function; empty if it is not."""
    stacks = [stack for stack in state.stacks if stack.part in LIMIT.by_itself.get(part, ())]
    reads_s = sum(stack.seconds for stack in stacks if stack.calls == LIMIT.reads_array)
    is_most = reads_s > LIMIT.mostly * sum(stack.seconds for stack in stacks)
    return _CAUSES.limits.for_archive if is_most else ""


def _why(lateness: Lateness, late: State, others: Sequence[State], is_disturbed: bool) -> tuple[str, str]:
    """The line at which the late rank takes longer, empty if none is certain, and the reason in words."""
    if lateness.has_more_to_compute:
        elements = lateness.compare(lambda mean: mean.elements)
        rows = lateness.compare(lambda mean: mean.rows)
        calls = [*late.inputs, *([late.loader.where] if late.loader else [])]
        line = next(filter(None, map(line_of_share, calls)), "") or next(iter(calls), "")
        return basename(line), str(WORDS.unlike(elements, rows))
    line = line_of_difference(late, others, LIMIT.sampled.get(lateness.part, (lateness.part,)))
    here, there = lateness.compare(lambda mean: mean.parts[PARTS.index(lateness.part)])
    # A rank that has less of the cores is slower in whatever it does, but seldom by this much.
    is_chance = here <= 2 * there and (is_disturbed or lateness.part in COMPUTES)
    where = line if lateness.at_times or not is_chance else ""
    inner = where if lateness.at_times else line_within(late, where, LIMIT.by_itself.get(lateness.part, ()))
    return _with_caller(inner, where), str(WORDS.why(lateness, text_at(inner), here, there))


def _where_they_wait(others: Sequence[State], lateness: Lateness) -> tuple[Exchange | None, str]:
    """The collective in which the others wait, None if they wait for gradients; and the place in words."""
    waits = [(call.seconds / state.covered_steps, call) for state in others for call in state.exchanges]
    seconds, exchange = max(waits, key=lambda pair: pair[0], default=(0.0, None))
    if exchange and seconds > lateness.share * lateness.step_s / 2:
        return exchange, f", in {exchange.name} ({basename(exchange.where)})"
    lines = [line for state in others for line in state.backward if state.ddps]
    return None, f", in backward ({basename(lines[0])})" if lines else ""


def _unlike_lengths(symptoms: RankSymptoms) -> Found:
    lateness = symptoms.lateness
    if lateness and lateness.in_turn >= LIMIT.least / 2 and lateness.longest >= 0.7:
        where = basename(next(iter(symptoms.first.inputs), ""))
        yield _CAUSES.found("unlike_lengths", where, lateness.in_turn, longest=lateness.longest)


def _repeated_work(symptoms: RankSymptoms) -> Found:
    """Work that every rank repeats. With a GPU the host may only be waiting for it, so nothing is said."""
    lateness = symptoms.lateness
    first = symptoms.first
    if lateness is None or first.device != "cpu":
        return
    for part, cause in (("waiting", "all_wait_for_data"), ("own code", "all_do_the_same")):
        index = PARTS.index(part)
        longest = [line_of_most(state, LIMIT.by_itself[part]) for state in symptoms.states]
        line, share = min(longest, key=lambda pair: pair[1])
        if any(other != line for other, _ in longest):
            continue
        if part == "own code":  # looks scatter: a line takes no more than its part of a mean step
            share = min(share, *(mean.parts[index] / lateness.step_s for mean in lateness.spent))
        steps = [s for s in first.steps if s.number > LIMIT.skipped and "evaluation" not in s.marks]
        few = [steps[n] for n in few_with_most(np.array([step.parts[index] for step in steps]))]
        begins = 2 * sum("new epoch" in step.marks for step in few) > len(few)
        if share >= (LIMIT.least if few or part == "waiting" else LIMIT.least_of_own):
            collectives = [call.name for call in first.exchanges if call.where == line]
            facts: dict[str, Any] = {"loader": first.loader, "few": len(few), "begins": begins}
            facts |= {"steps": len(steps), "text": text_at(line), "late": lateness}
            facts["remedy"] = _remedy(first, part)
            yield _CAUSES.found(cause, basename(line), share, collectives=collectives, **facts)


def _exposed_exchange(symptoms: RankSymptoms) -> Found:
    lateness, ddps = symptoms.lateness, symptoms.first.ddps
    if lateness is None or len(ddps) != 1:
        return
    ddp = ddps[0]
    share = max(0.0, lateness.exposed_share - sum(share for _, share in _explicit_exchanges(symptoms)))
    syncs = [step.syncs for step in symptoms.first.steps if step.is_read and step.syncs]
    count = sorted(syncs)[len(syncs) // 2] if syncs else 0
    late_rank_explains = lateness.late is not None and not symptoms.is_disturbed
    where = basename(next(iter(symptoms.first.backward), ""))
    if count > 1 and len(symptoms.first.backward) == 1:
        avoidable = share * (count - 1) / count
        finding = _CAUSES.found("exchange_in_each_pass", where, avoidable, count=count, ddp=ddp, lost=share)
        hidden_too = symptoms.first.device == "cpu"  # hidden exchanges take cores from the passes
        yield structs.replace(finding, limit="at least about") if hidden_too else finding
    elif share * _moving_part(symptoms) >= LIMIT.least and not late_rank_explains:
        hidden = fmean(mean.hidden for mean in lateness.spent) / lateness.step_s
        rows = symptoms.first.embeddings
        are_few = rows and rows.of_weights > LIMIT.mostly and rows.touched < LIMIT.few_rows * rows.count
        cause = "exposed_in_embeddings" if are_few else _cause_in_buckets(ddp)
        place = basename(ddp.where) if cause in LIMIT.of_the_wrapper else where
        yield _CAUSES.found(cause, place, share, ddp=ddp, hidden=hidden, rows=rows)


def _moving_part(symptoms: RankSymptoms) -> float:
    """The part of the gradients that change weights, as their learning rate is not always 0."""
    rate = symptoms.first.zero_rate
    return 1 - rate.of_weights if rate else 1.0


def _zero_rates(symptoms: RankSymptoms) -> Found:
    """Weights that are frozen by their learning rate alone; their part of the passes is not measured."""
    state, lateness = symptoms.first, symptoms.lateness
    rate, ddps = state.zero_rate, state.ddps
    if not (rate and lateness and ddps):
        return
    mean = dict(zip(PARTS, lateness.spent[0].parts, strict=False))  # without the exchange
    taken = (mean["backward"] + mean["optimizer"]) / lateness.step_s + lateness.exposed_share
    weight = rate.of_weights * taken
    if weight >= LIMIT.least:
        place = _with_caller(state.optimizer[0], state.optimizer[-1]) if state.optimizer else ""
        where = place or basename(next(iter(state.backward), ""))
        made = basename(ddps[0].where)
        finding = _CAUSES.found("zero_learning_rate", where, rate=rate, ddp=ddps[0], made=made, taken=taken)
        yield structs.replace(finding, urgency=weight)


def _cause_in_buckets(ddp: Ddp) -> str:
    """The cause that keeps gradients from being sent while backward continues."""
    if ddp.is_compiled:
        return "exposed_around_compiled"
    if len(ddp.buckets) == 1 and ddp.cap > LIMIT.usual_bucket:
        return "exposed_in_one_bucket"
    are_many = len(ddp.buckets) >= LIMIT.many_buckets and ddp.cap < LIMIT.usual_bucket
    return "exposed_in_many_buckets" if are_many else "exposed_exchange"


def _models(symptoms: RankSymptoms) -> Found:
    gpus = [state.gpu for state in symptoms.states if state.gpu]
    where = _model_line(symptoms)
    for ddp in symptoms.first.ddps:
        if ddp.needs_no_search:
            yield _CAUSES.found("unused_parameters", basename(ddp.where))
    if shared := [gpu for gpu in gpus if gpus.count(gpu) > 1]:
        yield _CAUSES.found("ranks_share_a_gpu", where, ranks=gpus.count(shared[0]), gpu=shared[0])
    if gpus and any(ddp.backend == "gloo" for ddp in symptoms.first.ddps):
        yield _CAUSES.found("gloo_on_gpus", where)
    if layers := sum(ddp.sync_norms for ddp in symptoms.first.ddps):
        yield _CAUSES.found("sync_batch_norm", where, layers=layers)


def _explicit_exchanges(symptoms: RankSymptoms) -> Iterator[tuple[Exchange, float]]:
    """Collectives that the script calls, and the share of a step that no late rank explains."""
    if symptoms.lateness is None:
        return
    calls_by_rank = [{(call.name, call.where): call for call in state.exchanges} for state in symptoms.states]
    for key, exchange in calls_by_rank[0].items():
        if not all(key in calls for calls in calls_by_rank):
            continue
        pairs = zip(calls_by_rank, symptoms.states, strict=True)
        step_s = min(calls[key].seconds / state.covered_steps for calls, state in pairs)
        yield exchange, min(step_s / symptoms.lateness.step_s, symptoms.lateness.exposed_share)


def _collectives(symptoms: RankSymptoms) -> Found:
    steps = symptoms.first.covered_steps
    for exchange, share in _explicit_exchanges(symptoms):
        if exchange.count < 0.9 * steps or share < LIMIT.least / 2 or exchange.name in LIMIT.between_two:
            continue
        where = basename(exchange.where)
        if exchange.name == "all_reduce" and (cause := _cause_of_all_reduce(symptoms, exchange)):
            yield _CAUSES.found(cause, where, share, exchange=exchange, steps=steps)
        elif exchange.name == BUFFERS:
            buffers = {name: size for ddp in symptoms.first.ddps for name, size in ddp.buffers.items()}
            yield _CAUSES.found("buffers_in_each_step", _model_line(symptoms), share, buffers=buffers)
        else:
            facts = {"exchange": exchange, "steps": steps, "exchanging": share}
            whole = max(share, _share_of_line(symptoms, exchange.where))
            yield _CAUSES.found("collective_in_each_step", where, whole, **facts)


def _share_of_line(symptoms: RankSymptoms, line: str) -> float:
    """The share of the run that each rank is at a collective's line, at least; 0 if they wait in turn."""
    if symptoms.lateness is None or symptoms.lateness.in_turn >= LIMIT.least / 2:
        return 0.0
    return min(share_of_line(state, line) for state in symptoms.states)


def _cause_of_all_reduce(symptoms: RankSymptoms, exchange: Exchange) -> str:
    """The cause that an all-reduce in each step shows, by its bytes; empty if it sends a single number."""
    steps, ddps = symptoms.first.covered_steps, symptoms.first.ddps
    if exchange.bytes <= LIMIT.small * exchange.count:
        return "sent_one_by_one" if exchange.count > 1.5 * steps else ""
    if not ddps:
        return "averaged_by_hand"
    gradients = max(1, sum(ddp.bytes for ddp in ddps))
    are_gradients = abs(exchange.bytes / steps / gradients - 1) < LIMIT.as_many
    return "averaged_twice" if are_gradients and any(step.syncs for step in symptoms.first.steps) else ""


def _cores(symptoms: RankSymptoms) -> Found:
    first = symptoms.first
    threads = symptoms.cores // max(1, symptoms.local)
    have_one = all(state.is_of_agent and state.threads == 1 for state in symptoms.states)
    lateness = symptoms.lateness
    waits = [mean.parts[0] for mean in lateness.spent] if lateness else []
    waits_for_data = lateness is not None and max(waits) >= LIMIT.least * lateness.step_s
    needs_threads = first.device == "cpu" or waits_for_data
    if have_one and not symptoms.chose_threads and threads >= 2 and needs_threads:
        yield _CAUSES.found("threads_of_ranks", threads=threads, symptoms=symptoms)
    is_crowded = first.threads * symptoms.local >= LIMIT.crowded * symptoms.cores
    if is_crowded and first.threads > 1 and first.device == "cpu":
        where = basename(first.set_threads[-1]) if first.set_threads else ""
        yield _CAUSES.found("more_threads_than_cores", where, threads=max(1, threads), symptoms=symptoms)
    loader = first.loader
    if loader and loader.workers * symptoms.local > symptoms.cores:
        finding = _CAUSES.found("workers_of_ranks", basename(loader.where), loader=loader, symptoms=symptoms)
        yield finding if waits_for_data else structs.replace(finding, urgency=0.0)  # it costs nothing


def _busy_process(symptoms: RankSymptoms) -> Found:
    """A process that computes something besides its training, such as a thread that never rests."""
    *others, most = sorted(symptoms.states, key=lambda state: state.cpu_s / state.covered_steps)
    usual = fmean(state.cpu_s / state.covered_steps for state in others)
    more = most.cpu_s / most.covered_steps - usual
    lateness = symptoms.lateness
    least = LIMIT.least_of_own * lateness.step_s if lateness else 0.0
    if lateness and lateness.late != most.rank and more > max(usual / 2, least):
        yield _CAUSES.found("busy_process", rank=most.rank, more=more, usual=usual)


CAUSES: tuple[Callable[[RankSymptoms], Found], ...] = (
    _unequal_weights, _uneven_batches, _shared_rows, _same_order, _unequal_batches, _late_rank,
    _unlike_lengths, _repeated_work, _zero_rates, _exposed_exchange, _collectives, _models, _busy_process,
    _cores,
)  # fmt: skip


def findings(symptoms: RankSymptoms) -> list[Finding]:
    """What is avoidable, the largest first."""
    findings = [finding for cause in CAUSES for finding in cause(symptoms)]
    lines = {each.where for each in findings if each.cause == "all_do_the_same"}  # with their collectives
    kept = [each for each in findings if each.where not in lines or not each.cause.startswith("collective")]
    return sorted(kept, key=lambda finding: -finding.weight)
