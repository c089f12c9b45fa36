"""Causes within a step: modes, garbage collection, graphs, hooks, the optimizer, the script's own lines."""

import math
import os
import re
from collections.abc import Sequence, Set
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
    Symptoms,
    Unused,
)
from perfkit.additions.shared.around import mentions
from perfkit.additions.shared.attribution import TimedLine
from perfkit.additions.shared.positions import text_at
from perfkit.additions.shared.sampler import EVERY_S

_CAUSES = Causes(__name__)
LIMIT = _CAUSES.limits


def _modes(symptoms: Symptoms) -> Found:
    evidence, script = symptoms.evidence, symptoms.script
    is_over = any("recompile_limit" in line for line in symptoms.printed)
    forward = symptoms.site("forward")
    if is_over or (symptoms.run.compiled >= 3 and evidence.shapes >= 3):
        share = symptoms.run.running(COMPILING)
        yield _CAUSES.found("compiled_again", forward, share, symptoms=symptoms, is_over=is_over)
    for mode, place in evidence.is_on.items():
        yield _CAUSES.found(mode, os.path.basename(place))
    if script.device == "cpu" and script.settings.get("amp") == "bf16" and not symptoms.cpu_has_bf16:
        yield _CAUSES.found("bf16_without_instructions", forward)
    workers = evidence.data.workers if evidence.data else 0
    where = symptoms.site("threads")
    if where and evidence.threads == 1 and workers + 1 < symptoms.cores:
        yield _CAUSES.found("one_thread", where, symptoms=symptoms)
    if where and evidence.threads > symptoms.cores:
        yield _CAUSES.found("more_threads_than_cores", where, symptoms=symptoms)
    if evidence.denormal > 0.01:
        yield _CAUSES.found("denormal_numbers", symptoms=symptoms)


def _threads(symptoms: Symptoms) -> Found:
    for thread in symptoms.evidence.busy_threads:
        where = os.path.basename(thread.place)
        finding = _CAUSES.found("busy_thread", where, thread=thread, text=text_at(thread.place))
        yield structs.replace(finding, urgency=LIMIT.of_spinning if thread.spins else LIMIT.of_thread)


def _collections(symptoms: Symptoms) -> Found:
    evidence = symptoms.evidence
    total_s = sum(evidence.collecting.values())
    share = symptoms.of_run(total_s)
    places = sorted(evidence.collecting, key=evidence.collecting.__getitem__, reverse=True)
    explicit = next((place for place in places if "collect(" in text_at(place)), None)
    if explicit and share >= LEAST / 2:
        where, text = os.path.basename(explicit), text_at(explicit)
        yield _CAUSES.found("explicit_collection", where, share, symptoms=symptoms, text=text)
    elif share >= 2 * LEAST and total_s <= evidence.steps_s:  # else it was in the start of an epoch
        yield _CAUSES.found("automatic_collection", os.path.basename(places[0]), share, symptoms=symptoms)


def _graph_grows(symptoms: Symptoms) -> Found:
    """A graph that grows: each backward pass visits more nodes than the one before."""
    nodes = list(symptoms.evidence.nodes.items())
    if len(nodes) < 3 or any(after <= before for (_, before), (_, after) in pairwise(nodes)):
        return
    first_step, first = nodes[0]
    last_step, last = nodes[-1]
    # It grows in all steps, not only in these, if at this rate they would have made most of the last graph.
    if (last - first) / (last_step - first_step) * last_step >= last / 2:
        where = symptoms.site("retain_graph") or symptoms.site("backward")
        yield _CAUSES.found("graph_grows", where, symptoms=symptoms, first=nodes[0], last=nodes[-1])


def _calls(symptoms: Symptoms) -> Found:
    """Functions that the script itself calls in its steps, and that few trainings need there."""
    for line, share in symptoms.lines(OWN):
        for name, cause in LIMIT.called.items():
            if share >= LEAST / 2 and line.calls and name in line.calls[0]:
                yield _CAUSES.found(cause, line.where, share, text=line.text)


def _checkpointing(symptoms: Symptoms) -> Found:
    evidence, share = symptoms.evidence, symptoms.share_of(AGAIN)
    has_room = evidence.peak and evidence.peak <= LIMIT.much_free * evidence.memory
    if share >= LEAST / 2 and has_room:
        where = symptoms.site("checkpointing")
        yield _CAUSES.found("checkpointing_without_need", where, share, symptoms=symptoms)


def _backward_again(symptoms: Symptoms) -> Found:
    share = symptoms.evidence.again * symptoms.share_of("backward")
    where = symptoms.site("retain_graph")
    if share >= LEAST / 2 and where:
        yield _CAUSES.found("backward_again", where, share, symptoms=symptoms)


def _in_vain(symptoms: Symptoms) -> Found:
    share = _share_in_vain(symptoms)
    if share >= LEAST / 2:
        line = symptoms.evidence.in_vain[0]
        yield _CAUSES.found("gradients_in_vain", line.where, share, line=line)


def _unused(symptoms: Symptoms) -> Found:
    for unused in symptoms.evidence.unused:
        share = symptoms.of_run(unused.line.seconds)
        if share >= LIMIT.of_unused and not _has_other_uses(unused):
            yield _CAUSES.found("results_not_used", unused.line.where, share, unused=unused)


def _has_other_uses(unused: Unused) -> bool:
    """Whether other lines use the results, too, such as to find out which of them to select."""
    line = unused.line
    assigned = re.match(r"(\w+)\s*=[^=]", line.text)
    if not assigned:
        return False
    uses = [number for number in mentions(assigned[1], line.file, line.line) if number != line.line]
    return any(f"{os.path.basename(line.file)}:{number}" != unused.selected_at for number in uses)


def _hooks(symptoms: Symptoms) -> Found:
    in_hooks = symptoms.evidence.in_hooks
    share = symptoms.of_run(sum(in_hooks.values()))
    if share >= LEAST / 2:
        place = max(in_hooks, key=in_hooks.__getitem__)
        where, text = os.path.basename(place), text_at(place)
        yield _CAUSES.found("work_in_hooks", where, share, symptoms=symptoms, text=text)


def _parametrized(symptoms: Symptoms) -> Found:
    times, part = symptoms.evidence.parametrized
    if times >= LIMIT.again and part >= LEAST / 2:
        where = next((line.where for line, _ in symptoms.lines("forward")), "")
        share = symptoms.of_run(part * symptoms.evidence.steps_s)
        yield _CAUSES.found("parametrized_again", where, share, times=times)


def _without_gradients(symptoms: Symptoms) -> Found:
    where = symptoms.site("evaluation")
    share = sum(part for line, part in symptoms.lines(OWN) if _calls_model(symptoms, line, where))
    if share >= LEAST and where:
        yield _CAUSES.found("model_without_gradients", where, share)


def _small_operators(symptoms: Symptoms) -> Found:
    evidence = symptoms.evidence
    if not evidence.nodes or any(_graph_grows(symptoms)):
        return
    count = median(evidence.nodes.values())
    call_s = sum(evidence.of_step.get(part, 0.0) for part in ("forward", "backward")) / max(1, count)
    part = symptoms.share_of("forward", "backward")
    if count >= LIMIT.many_operators and call_s <= LIMIT.call_s and part >= 2 * LEAST:
        where = next((line.where for line, _ in symptoms.lines("forward")), "")
        yield _CAUSES.found(
            "small_operators", where, symptoms=symptoms, part=part, operators=count, call_s=call_s
        )


def _share_in_vain(symptoms: Symptoms) -> float:
    """The share of the run of the line whose gradients no optimizer takes."""
    lines = symptoms.evidence.in_vain
    return symptoms.of_run(lines[0].seconds) if lines else 0.0


def _zeros(symptoms: Symptoms) -> Found:
    """A matrix of zeros, if a product is what takes most of both passes."""
    if not (symptoms.evidence.zeros and symptoms.evidence.operators):
        return
    line = symptoms.evidence.operators[0]
    rows, columns, part = symptoms.evidence.zeros
    if re.search(LIMIT.product, line.text):
        yield _CAUSES.found("mostly_zeros", line.where, line=line, rows=rows, columns=columns, part=part)


def _calls_model(symptoms: Symptoms, line: TimedLine, evaluation: str) -> bool:
    """Whether a line calls the model, as the line of an evaluation and those of the forward pass do."""
    of_forward = {forward_line.where for forward_line, _ in symptoms.lines("forward")}
    is_loss = any(name.endswith("Loss.forward") for name in line.calls)
    evaluation_line = evaluation.partition(",")[0]  # without the line that leads to it
    is_of_model = line.where in of_forward or line.where == evaluation_line
    return line.calls_layer and is_of_model and not is_loss


def _zero_rates(symptoms: Symptoms) -> Found:
    """Weights that are frozen by their learning rate alone; what their own operators and updates take."""
    rate = symptoms.evidence.zero_rate
    if rate is None:
        return
    share, taken = None, symptoms.share_of("backward", "optimizer")
    weight = rate.of_weights * taken  # if their operators are as usual
    if rate.backward_s is not None:
        weight = symptoms.of_run(rate.backward_s) + rate.of_weights * symptoms.share_of("optimizer")
        share = weight
    if weight >= LEAST / 2:
        where = _optimizer_line(symptoms) or symptoms.site("backward")
        finding = _CAUSES.found("zero_learning_rate", where, share, rate=rate, taken=taken)
        yield structs.replace(finding, urgency=weight)


def _optimizer_line(symptoms: Symptoms) -> str:
    optimizers = sum(site.role == "optimizer" for site in symptoms.script.sites)
    return symptoms.site("optimizer") if optimizers == 1 else ""  # else it may be any of them


def _weights(symptoms: Symptoms) -> Found:
    where = _optimizer_line(symptoms)
    evidence = symptoms.evidence
    parts = {"gradients_without_optimizer": evidence.without_optimizer, "frozen_but_updated": evidence.frozen}
    if _share_in_vain(symptoms) >= LEAST / 2:  # a line is named for them
        del parts["gradients_without_optimizer"]
    for cause, part in parts.items():
        if part >= LEAST / 2:
            yield _CAUSES.found(cause, where, part=part)
    share = symptoms.share_of("optimizer")
    if evidence.groups >= max(LIMIT.many_groups, 2 * evidence.group_kinds) and share >= LEAST / 2:
        yield _CAUSES.found("many_parameter_groups", symptoms.site("groups"), share, symptoms=symptoms)


def _dense_embeddings(symptoms: Symptoms) -> Found:
    """Gradients of whole tables of which a step touches few rows: zeroed, filled and read in each step."""
    rows = symptoms.evidence.rows
    steps = list(symptoms.lines("optimizer"))
    part = sum(share for _, share in steps)
    if not rows or rows.touched >= 0.2 * rows.count or rows.of_weights <= 0.5 or part < 2 * LEAST:
        return
    tables = [name.split(".")[-2] for name in rows.names if "." in name]  # `user_emb` of `user_emb.weight`
    calls = [re.compile(rf"\b{re.escape(table)}\(") for table in tables]
    operators = symptoms.evidence.operators
    of_tables = [line.seconds for line in operators if any(call.search(line.text) for call in calls)]
    zeroing = sum(share for line, share in symptoms.lines(OWN) if "zero_grad(" in line.text)
    dense = (part + zeroing) * rows.of_weights + symptoms.of_run(sum(of_tables))
    facts = {"symptoms": symptoms, "part": part, "optimizers": symptoms.script.optimizers}
    share = dense * (1 - rows.touched / rows.count)
    yield _CAUSES.found("dense_embedding", steps[0][0].where, share, **facts)


def _memory(symptoms: Symptoms) -> Found:
    memory, evidence = symptoms.memory, symptoms.evidence
    if not memory or memory.steps < LIMIT.enough_steps:
        return
    kept = evidence.kept
    grew = memory.last - memory.first
    least = max(2 * MUCH_MEMORY, 0.1 * memory.first)
    if kept:  # then less growth is enough, in proportion to the steps that were observed
        least = min(MUCH_MEMORY, max(LIMIT.sure_memory, LIMIT.memory_of_a_step * memory.steps))
    # A process that fills caches at its start, or a first evaluation, grows in one part of the time only.
    even = grew / max(1, len(memory.each))
    growing = [part for part in memory.each if part >= LIMIT.of_growth * even]
    if grew > least and len(growing) >= max(2, LIMIT.parts_that_grow * len(memory.each)):
        name, where = next(iter((kept or evidence.grown).items()), ("", ""))
        yield _CAUSES.found("memory_grows", where, symptoms=symptoms, name=name, grew=grew)


CAUSES = (
    _modes, _threads, _collections, _graph_grows, _calls, _checkpointing, _backward_again, _in_vain, _unused,
    _hooks, _parametrized, _without_gradients, _small_operators, _zeros, _zero_rates, _weights,
    _dense_embeddings, _memory,
)  # fmt: skip


def lines(symptoms: Symptoms, findings: Sequence[Finding]) -> Found:
    """Lines that take much time, and are not the place of a finding."""
    places = {finding.where for finding in findings}
    look = symptoms.of_run(EVERY_S)  # the share of one look: the share of a few looks varies by chance
    least = max(LEAST, LEAST / 2 + 3 * math.sqrt(LEAST * (1 - LEAST) * look))
    yield from _own_lines(symptoms, places, least)
    yield from _lines_of_forward(symptoms, places, least)
    yield from _lines_of_passes(symptoms, places, least)


def _own_lines(symptoms: Symptoms, places: Set[str], least: float) -> Found:
    """Lines of the script's own code, between the passes and parts that each training has."""
    if symptoms.run.of_step.get("forward", 0.0) <= 0:  # the model is code of the script's own
        return
    of_parts = {line.where for line in symptoms.evidence.lines if line.part not in (BETWEEN, OWN)}
    own_s = [step.parts[-1] for step in symptoms.run.plain] or [math.inf]  # the last of `OF_STEP`
    of_backward = _places_of(symptoms, "backward", "step")
    of_training = of_parts | _places_of(symptoms, *LIMIT.passes)
    in_graphs = _has_long_backward(symptoms)
    for line, share in symptoms.lines(OWN):
        is_much = share >= LIMIT.much  # a line that calls the model counts, too, such as a Jacobian
        needed = LIMIT.losses if share > symptoms.share_of("forward", "backward") else LIMIT.needed
        excluded = places | (of_backward if is_much else of_training)
        is_needed = any(re.search(needed, name) for name in line.calls)
        if share >= least and line.where not in excluded and not is_needed:
            in_graph = in_graphs and share < symptoms.share_of("backward")
            is_rare = median(own_s) < line.seconds / symptoms.evidence.steps / 2  # most steps run it rarely
            is_long = _call_s(symptoms, line) >= LIMIT.long_call_s
            facts = {"line": line, "is_rare": is_rare, "is_long": is_long, "in_graph": in_graph}
            finding = _CAUSES.found("own_line", line.where, share, symptoms=symptoms, **facts)
            finding = symptoms.found_around(finding, line)
            yield structs.replace(finding, cause="own_line_in_graph", limit="") if in_graph else finding


def _lines_of_forward(symptoms: Symptoms, places: Set[str], least: float) -> Found:
    """Lines of a forward pass that takes oddly long: those that call no layer, or make large tensors."""
    forward, backward = symptoms.share_of("forward"), symptoms.share_of("backward")
    # Work without gradients makes forward longer than backward; a compiled model does not show that.
    is_longer = 0 < backward < forward and not symptoms.run.compiled
    excluded = places | _places_of(symptoms, "backward", "step")
    for line, share in symptoms.lines("forward"):
        is_odd = is_longer or (share >= forward / 2 and re.search(LIMIT.large_between, line.text))
        if is_odd and share >= least and line.where not in excluded and not line.calls_layer:
            yield _CAUSES.found("line_of_forward", line.where, share, text=line.text, is_longer=is_longer)


def _lines_of_passes(symptoms: Symptoms, places: Set[str], least: float) -> Found:
    """Lines of an optimizer, and of a backward pass that is longer than usual."""
    parts = ["backward", "optimizer"] if _has_long_backward(symptoms) else ["optimizer"]
    excluded = places | _places_of(symptoms, *LIMIT.passes)
    for line, share in symptoms.lines(*parts):
        if share >= least and line.where not in excluded:
            call_s = _call_s(symptoms, line)
            facts = {"decomposes": re.search(LIMIT.decomposes, line.text), "part": line.part}
            facts |= {"is_long": call_s >= LIMIT.long_call_s, "is_short": 0 < call_s <= LIMIT.short_call_s}
            yield _CAUSES.found("line_of_pass", line.where, share, text=line.text, **facts)


def _has_long_backward(symptoms: Symptoms) -> bool:
    """Whether a backward pass takes longer than is usual after such a forward pass, and not by chance."""
    backward, usual = symptoms.share_of("backward"), LIMIT.long_backward * symptoms.share_of("forward")
    of_difference = (backward + LIMIT.long_backward * usual) * symptoms.of_run(EVERY_S)
    return bool(backward - usual > 2 * math.sqrt(of_difference))


def _places_of(symptoms: Symptoms, *roles: str) -> set[str]:
    """The places of calls with these roles."""
    return {os.path.basename(site.place) for site in symptoms.script.sites if site.role in roles}


def _call_s(symptoms: Symptoms, line: TimedLine) -> float:
    """Seconds of a call from a loop; 0 if no loop was seen to call the line's function."""
    return line.seconds / symptoms.evidence.steps / line.times if line.times else 0.0
