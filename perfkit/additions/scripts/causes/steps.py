"""Causes within a step: modes, garbage collection, graphs, hooks, the optimizer, the script's own lines."""

import math
import os
import re
from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from msgspec import structs

from perfkit.additions.advice.finding import Causes, Finding, Found
from perfkit.additions.scripts.messages import (
    AGAIN,
    BETWEEN,
    COMPILING,
    LEAST,
    MUCH_MEMORY,
    OWN,
    STEPS,
    Symptoms,
)
from perfkit.additions.shared.lines import EVERY_S, Line, text_at

_CAUSES = Causes(__name__)
LIMIT = _CAUSES.limits


def _modes(seen: Symptoms) -> Found:
    evidence = seen.evidence
    is_over = any("recompile_limit" in line for line in seen.printed)
    if is_over or (seen.run.compiled >= 3 and evidence.shapes >= 3):
        share = seen.run.running(COMPILING)
        yield _CAUSES.found("compiled_again", seen.site("forward"), share, seen=seen, is_over=is_over)
    for name, place in seen.evidence.is_on.items():
        yield _CAUSES.found(name, os.path.basename(place))
    if seen.script.device == "cpu" and seen.script.settings.get("amp") == "bf16" and not seen.cpu_has_bf16:
        yield _CAUSES.found("bf16_without_instructions", seen.site("forward"))
    workers = evidence.data.workers if evidence.data else 0
    if (where := seen.site("threads")) and evidence.threads == 1 and workers + 1 < seen.cores:
        yield _CAUSES.found("one_thread", where, seen=seen)
    if where and evidence.threads > seen.cores:
        yield _CAUSES.found("more_threads_than_cores", where, seen=seen)
    if seen.evidence.denormal > 0.01:
        yield _CAUSES.found("denormal_numbers", seen=seen)


def _threads(seen: Symptoms) -> Found:
    for thread in seen.evidence.busy_threads:
        where = os.path.basename(thread.place)
        told = _CAUSES.found("busy_thread", where, thread=thread, text=text_at(thread.place))
        yield structs.replace(told, urgency=LIMIT.of_spinning if thread.spins else LIMIT.of_thread)


def _collections(seen: Symptoms) -> Found:
    evidence = seen.evidence
    total = sum(evidence.collecting.values())
    share = seen.of_run(total)
    places = sorted(evidence.collecting, key=evidence.collecting.__getitem__, reverse=True)
    asked_for = [place for place in places if "collect(" in text_at(place)]
    if asked_for and share >= LEAST / 2:
        where = os.path.basename(asked_for[0])
        yield _CAUSES.found("explicit_collection", where, share, seen=seen, text=text_at(asked_for[0]))
    elif share >= 2 * LEAST and total <= evidence.steps_s:  # else it was in the start of an epoch
        yield _CAUSES.found("automatic_collection", os.path.basename(places[0]), share, seen=seen)


def _graph_grows(seen: Symptoms) -> Found:
    """Each backward pass walks through more of the past than the one before."""
    nodes = list(seen.evidence.nodes.items())
    if len(nodes) < 3 or any(after <= before for (_, before), (_, after) in pairwise(nodes)):
        return
    first_step, first = nodes[0]
    last_step, last = nodes[-1]
    # Some steps of many show it, if most of the graph is what they would have made since the first one.
    if (last - first) / (last_step - first_step) * last_step >= last / 2:
        where = seen.site("retain_graph") or seen.site("backward")
        yield _CAUSES.found("graph_grows", where, seen=seen, first=nodes[0], last=nodes[-1])


def _in_steps(seen: Symptoms) -> Found:
    evidence = seen.evidence
    for line, share in seen.lines(OWN):
        for name, cause in LIMIT.called.items():
            if share >= LEAST / 2 and line.calls and name in line.calls[0]:
                yield _CAUSES.found(cause, line.where, share, text=line.text)
    share = seen.share_of(AGAIN)
    is_free = evidence.peak and evidence.peak <= LIMIT.much_free * evidence.memory
    if share >= LEAST / 2 and is_free:  # computed twice, to save memory of which there is plenty
        yield _CAUSES.found("checkpointing_without_need", seen.site("checkpointing"), share, seen=seen)
    share = evidence.again * seen.share_of("backward")
    if share >= LEAST / 2 and (where := seen.site("retain_graph")):
        yield _CAUSES.found("backward_again", where, share, seen=seen)
    if evidence.in_vain:
        line = evidence.in_vain[0]
        share = seen.of_run(line.seconds)
        if share >= LEAST / 2:
            yield _CAUSES.found("gradients_in_vain", line.where, share, line=line)
    share = seen.of_run(sum(evidence.in_hooks.values()))
    if share >= LEAST / 2:
        place = max(evidence.in_hooks, key=evidence.in_hooks.__getitem__)
        yield _CAUSES.found("work_in_hooks", os.path.basename(place), share, seen=seen, text=text_at(place))
    times, part = evidence.parametrized
    if times >= LIMIT.again and part >= LEAST / 2:
        where = next((line.where for line, _ in seen.lines("forward")), "")
        yield _CAUSES.found("parametrized_again", where, part * seen.run.running(STEPS), times=times)
    where = seen.site("evaluation")
    share = sum(part for line, part in seen.lines(OWN) if _calls_model(seen, line, where))
    if share >= LEAST and where:
        yield _CAUSES.found("model_without_gradients", where, share)
    operators = median(evidence.nodes.values()) if evidence.nodes and not any(_graph_grows(seen)) else 0
    each = sum(evidence.of_step.get(part, 0.0) for part in ("forward", "backward")) / max(1, operators)
    share = seen.share_of("forward", "backward")
    if operators >= LIMIT.many_operators and each <= LIMIT.call_s and share >= 2 * LEAST:
        where = next((line.where for line, _ in seen.lines("forward")), "")
        yield _CAUSES.found("small_operators", where, seen=seen, part=share, operators=operators, each=each)


def _zeros(seen: Symptoms) -> Found:
    """A matrix of zeros, if a product is what takes most of both passes."""
    if not (seen.evidence.zeros and seen.evidence.operators):
        return
    line = seen.evidence.operators[0]
    rows, columns, part = seen.evidence.zeros
    if re.search(LIMIT.product, line.text):
        yield _CAUSES.found("mostly_zeros", line.where, line=line, rows=rows, columns=columns, part=part)


def _calls_model(seen: Symptoms, line: Line, evaluation: str) -> bool:
    """Whether a line calls the model, as the line of an evaluation and those of the forward pass do."""
    of_forward = {each.where for each, _ in seen.lines("forward")}
    is_loss = any(name.endswith("Loss.forward") for name in line.calls)
    own = evaluation.partition(",")[0]  # without the line that calls it
    is_of_model = line.where in of_forward or line.where == own
    return line.calls_layer and is_of_model and not is_loss


def _weights(seen: Symptoms) -> Found:
    optimizers = sum(site.role == "optimizer" for site in seen.script.sites)
    where = seen.site("optimizer") if optimizers == 1 else ""  # else it may be any of them
    evidence = seen.evidence
    odd = {"gradients_without_optimizer": evidence.without_optimizer, "frozen_but_updated": evidence.frozen}
    for cause, part in odd.items():
        if part >= LEAST / 2:
            yield _CAUSES.found(cause, where, part=part)
    rows = evidence.rows
    places = list(seen.lines("optimizer"))
    part = sum(share for _, share in places)
    if rows and rows.touched < 0.2 * rows.count and rows.of_weights > 0.5 and part >= 2 * LEAST:
        share = part * rows.of_weights * (1 - rows.touched / rows.count)
        yield _CAUSES.found("dense_embedding", places[0][0].where, share, seen=seen, part=part)
    share = seen.share_of("optimizer")
    if evidence.groups >= max(LIMIT.many_groups, 2 * evidence.group_kinds) and share >= LEAST / 2:
        yield _CAUSES.found("many_parameter_groups", seen.site("groups"), share, seen=seen)


def _memory(seen: Symptoms) -> Found:
    memory, evidence = seen.memory, seen.evidence
    if not memory or memory.steps < LIMIT.enough_steps:
        return
    kept = evidence.kept
    grew = memory.last - memory.first
    least = max(2 * MUCH_MEMORY, 0.1 * memory.first)
    if kept:  # how many steps there were is chance
        least = min(MUCH_MEMORY, max(LIMIT.sure_memory, LIMIT.memory_of_a_step * memory.steps))
    # At their start, processes fill caches, and the first evaluation takes some, once: others grow on.
    even = grew / max(1, len(memory.each))
    growing = [part for part in memory.each if part >= LIMIT.of_growth * even]
    if grew > least and len(growing) >= max(2, LIMIT.parts_that_grow * len(memory.each)):
        name, where = next(iter((kept or evidence.grown).items()), ("", ""))
        yield _CAUSES.found("memory_grows", where, seen=seen, name=name, grew=grew)


CAUSES = (_modes, _threads, _collections, _graph_grows, _in_steps, _zeros, _weights, _memory)


def lines(seen: Symptoms, known: Sequence[Finding]) -> Found:
    """Lines that take much and have no `known` cause: said as what they are."""
    named = {finding.where for finding in known}
    sites = seen.script.sites
    passes = {os.path.basename(site.place) for site in sites if site.role in LIMIT.passes}
    backward_and_step = {os.path.basename(site.place) for site in sites if site.role in ("backward", "step")}
    of_parts = {line.where for line in seen.evidence.lines if line.part not in (BETWEEN, OWN)}
    sees_models = seen.run.of_step.get("forward", 0.0) > 0  # else the model is code of the script's own
    own = [step.parts[-1] for step in seen.run.plain] or [math.inf]  # the last of `OF_STEP`
    look = seen.of_run(EVERY_S)  # the share of one: in few looks, much is chance
    least = max(LEAST, LEAST / 2 + 3 * math.sqrt(LEAST * (1 - LEAST) * look))
    backward, usual = seen.share_of("backward"), LIMIT.long_backward * seen.share_of("forward")
    chance = math.sqrt((backward + LIMIT.long_backward * usual) * look)  # the deviation of the difference
    is_long = backward - usual > 2 * chance
    for line, share in seen.lines(OWN):
        is_much = share >= LIMIT.much  # of a line that calls the model, too, such as a Jacobian
        needed = LIMIT.losses if share > seen.share_of("forward", "backward") else LIMIT.needed
        others = backward_and_step if is_much else passes | of_parts
        is_needed = any(re.search(needed, name) for name in line.calls)
        if share >= least and sees_models and line.where not in named | others and not is_needed:
            is_rare = median(own) < line.seconds / seen.evidence.steps / 2  # a usual step spends less in all
            in_graph = is_long and share < backward
            about = {"seen": seen, "line": line, "is_rare": is_rare, "in_graph": in_graph}
            about["is_long"] = _call_s(seen, line) >= LIMIT.long_call_s
            told = _CAUSES.found("own_line", line.where, share, **about)
            yield structs.replace(told, cause="own_line_in_graph", limit="") if in_graph else told
    # What is not in the graph has no backward pass, which usually takes longer; a compiled one says nothing.
    is_longer = 0 < backward < seen.share_of("forward") and not seen.run.compiled
    most = seen.share_of("forward") / 2
    for line, share in seen.lines("forward"):
        is_odd = is_longer or (share >= most and re.search(LIMIT.large_between, line.text))
        if is_odd and share >= least and line.where not in named | backward_and_step and not line.calls_layer:
            yield _CAUSES.found("line_of_forward", line.where, share, text=line.text, is_longer=is_longer)
    parts = ["backward", "optimizer"] if is_long else ["optimizer"]
    for line, share in seen.lines(*parts):
        if share >= least and line.where not in named | passes:
            call_s = _call_s(seen, line)
            about = {"decomposes": re.search(LIMIT.decomposes, line.text), "part": line.part}
            about |= {"is_long": call_s >= LIMIT.long_call_s, "is_short": 0 < call_s <= LIMIT.short_call_s}
            yield _CAUSES.found("line_of_pass", line.where, share, text=line.text, **about)


def _call_s(seen: Symptoms, line: Line) -> float:
    """Seconds that each call from a loop takes; 0 if no loop was seen to call the function of the line."""
    return line.seconds / seen.evidence.steps / line.times if line.times else 0.0
