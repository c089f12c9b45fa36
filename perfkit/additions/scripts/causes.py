"""What is avoidable in a script, and which switches to try: by what was measured or asked, never by a name.

What is said of a cause, and the edit that removes it, is in the table next to this file.
"""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import msgspec
from msgspec import structs

from perfkit.additions.advice.finding import Causes, Finding, Found
from perfkit.additions.scripts.evidence import AGAIN, Evidence
from perfkit.additions.scripts.messages import TEXTS, Observation, ScriptFacts
from perfkit.additions.scripts.run_account import CHECKPOINTS, COMPILING, EPOCHS, EVALUATION, OWN, Account
from perfkit.additions.shared.lines import Line, text_at
from perfkit.additions.shared.trend import Trend
from perfkit.recipe import Recipe, Value, shown
from perfkit.rules import Target, applicable
from perfkit.show import units

_CAUSES = Causes(__name__)
LIMIT = _CAUSES.limits
# Functions between the passes of a step that belong to the training.
_NEEDED = re.compile(r"(_loss|cross_entropy|Loss\.forward|zero_grad|clip_grad\w*|GradScaler\.\w+)$")
_BATCHES = ("waiting", "data set", "collate")  # parts in which a batch is loaded, or waited for
_CALLED = {"state_dict": "state_dict_in_each_step", "deepcopy": "copies_in_each_step"}  # what a line calls
_PASSES = ("forward", "backward", "step")  # roles of calls that every training makes
_LOADING = ("tensor_from_list", "rows_one_by_one", "open_hdf5", "loading_line", "loading_lines")
"""Causes that are a part of the wait for data."""


class Growth(msgspec.Struct, frozen=True):
    """Memory before and after some steps: `memory` of `watch` in docs/json.md."""

    steps: int
    first: int
    last: int
    workers_first: int = 0
    workers_last: int = 0
    threads: int = 0


class Symptoms(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen of a script; `growing`: the part of a step that grows; `printed`: its warnings."""

    script: ScriptFacts
    run: Account
    evidence: Evidence
    cores: int
    cpu_has_bf16: bool = True
    trend: Trend | None = None
    growing: str = ""
    memory: Growth | None = None
    printed: list[str] = []

    def lines(self, *parts: str) -> Iterator[tuple[Line, float]]:
        for line in self.evidence.lines:
            if line.part in parts:
                yield line, line.seconds / self.evidence.steps_s * self.run.steps_share

    def share_of(self, *parts: str) -> float:
        """The share of the run that parts of its steps take."""
        seconds = sum(self.evidence.parts.get(part, 0.0) for part in parts)
        return seconds / self.evidence.steps_s * self.run.steps_share

    @property
    def loading(self) -> float:
        return self.share_of("sampler", *_BATCHES)

    def loading_lines(self) -> Iterator[tuple[Line, float]]:
        """Lines that load, with their share of the run; of lines in workers, that is a share of the wait."""
        yield from self.lines("sampler", "data set", "collate")
        if loading := self.evidence.loading:
            for line in loading.lines:
                yield line, self.loading * line.seconds / max(loading.seconds, line.seconds)

    def site(self, role: str) -> str:
        frames = next((site.frames for site in self.script.sites if site.role == role), [])
        return ", called in ".join(os.path.basename(frame.place) for frame in frames[:2])


def _outside(seen: Symptoms) -> Found:
    account = seen.run
    if (evaluating := account.running(EVALUATION)) >= LIMIT.least:
        cause = "evaluation" if account.evaluations <= account.steps / 2 else "frozen_model"
        yield _CAUSES.found(cause, seen.site("evaluation"), evaluating, seen=seen)
    epochs = len(account.epochs)
    workers = seen.evidence.data.workers if seen.evidence.data else 0
    if epochs > 1 and (starting := account.running(EPOCHS)) >= LIMIT.least:
        cause = "workers_restart" if workers else "epochs_start"
        if epochs >= 0.9 * account.steps:
            cause = "epoch_in_each_step"
        yield _CAUSES.found(cause, seen.site("loader"), starting, seen=seen)
    # Other programs make steps long, but not those of the looks with one thread.
    looked_at = seen.evidence.parts.get("checkpoint", 0.0) / (sum(seen.evidence.parts.values()) or 1.0)
    saving = max(account.running(CHECKPOINTS), looked_at)
    if saving >= LIMIT.least / 2:
        yield _CAUSES.found("checkpoints", seen.site("checkpoint"), saving)
    if where := seen.site("evaluation with gradients"):
        grew = account.evaluation_bytes if account.evaluation_bytes > LIMIT.much_memory else None
        yield _CAUSES.found("evaluation_with_gradients", where, grew=grew)


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
    if seen.evidence.denormal > 0.01:
        yield _CAUSES.found("denormal_numbers", seen=seen)


def _collections(seen: Symptoms) -> Found:
    evidence = seen.evidence
    total = sum(evidence.collecting.values())
    share = total / evidence.steps_s * seen.run.steps_share
    places = sorted(evidence.collecting, key=evidence.collecting.__getitem__, reverse=True)
    asked_for = [place for place in places if "collect(" in text_at(place)]
    if asked_for and share >= LIMIT.least / 2:
        where = os.path.basename(asked_for[0])
        yield _CAUSES.found("explicit_collection", where, share, seen=seen, text=text_at(asked_for[0]))
    elif share >= 2 * LIMIT.least and total <= evidence.steps_s:  # else it was in the start of an epoch
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
        for name, cause in _CALLED.items():
            if share >= LIMIT.least / 2 and name in "".join(line.calls[:1]):
                yield _CAUSES.found(cause, line.where, share, text=line.text)
    share = seen.share_of(AGAIN)
    is_free = evidence.peak and evidence.peak <= LIMIT.much_free * evidence.memory
    if share >= LIMIT.least / 2 and is_free:  # computed twice, to save memory of which there is plenty
        yield _CAUSES.found("checkpointing_without_need", seen.site("checkpointing"), share, seen=seen)
    share = sum(evidence.in_hooks.values()) / evidence.steps_s * seen.run.steps_share
    if share >= LIMIT.least / 2:
        place = max(evidence.in_hooks, key=evidence.in_hooks.__getitem__)
        yield _CAUSES.found("work_in_hooks", os.path.basename(place), share, text=text_at(place))
    operators = median(evidence.nodes.values()) if evidence.nodes else 0
    each = sum(evidence.of_step.get(part, 0.0) for part in ("forward", "backward")) / max(1, operators)
    share = seen.share_of("forward", "backward")
    if operators >= LIMIT.many_operators and each <= LIMIT.call_s and share >= 2 * LIMIT.least:
        where = next((line.where for line, _ in seen.lines("forward")), "")
        yield _CAUSES.found("small_operators", where, seen=seen, part=share, operators=operators, each=each)


def _weights(seen: Symptoms) -> Found:
    optimizers = sum(site.role == "optimizer" for site in seen.script.sites)
    where = seen.site("optimizer") if optimizers == 1 else ""  # else it may be any of them
    evidence = seen.evidence
    odd = {"gradients_without_optimizer": evidence.without_optimizer, "frozen_but_updated": evidence.frozen}
    for cause, part in odd.items():
        if part >= LIMIT.least / 2:
            yield _CAUSES.found(cause, where, part=part)
    rows = evidence.rows
    places = list(seen.lines("optimizer"))
    share = sum(part for _, part in places)
    if rows and rows.touched < 0.2 * rows.count and rows.of_weights > 0.5 and share >= 2 * LIMIT.least:
        yield _CAUSES.found("dense_embedding", places[0][0].where, share, seen=seen)
    share = seen.share_of("optimizer")
    if evidence.groups >= max(LIMIT.many_groups, 2 * evidence.group_kinds) and share >= LIMIT.least / 2:
        yield _CAUSES.found("many_parameter_groups", seen.site("groups"), share, seen=seen)


def _handling(seen: Symptoms) -> Found:
    data = seen.evidence.data
    loading = seen.evidence.loading
    if data and loading and data.open_files:
        rows = max(data.open_files.values())
        where = next((line.where for line, _ in seen.loading_lines()), "")
        share = seen.loading if rows > 1 else None
        yield _CAUSES.found("open_hdf5", where, share, seen=seen, rows=rows)
    share = seen.share_of(*_BATCHES)
    warnings = [text for text in seen.printed if "from a list of numpy.ndarrays is extremely slow" in text]
    if warnings:  # `train.py:41: UserWarning: …`
        where = os.path.basename(warnings[0].partition(": ")[0])
        lines = [*seen.loading_lines(), *seen.lines(OWN)]
        share = sum(part for line, part in lines if line.where == where)
        yield _CAUSES.found("tensor_from_list", where, share)
        return
    if not (data and loading and data.in_memory) or data.can_batch or share < LIMIT.least / 2:
        return
    rows = round(loading.samples / loading.batches)
    has_own_collate = any(line.part == "collate" and not line.calls for line, _ in seen.loading_lines())
    is_cheap = loading.seconds / loading.samples <= LIMIT.cheap_sample_s
    if rows >= LIMIT.many_rows and is_cheap and not has_own_collate:
        yield _CAUSES.found("rows_one_by_one", seen.site("loader"), share, seen=seen, rows=rows)


def _workers(seen: Symptoms) -> Found:
    data = seen.evidence.data
    memory = seen.memory
    loader = seen.site("loader")
    if not data:
        return
    if data.is_iterable and not data.is_split and data.workers > 1:
        yield _CAUSES.found("iterable_not_split", loader, seen=seen)
    if data.generators:
        cause = "same_random_numbers" if data.workers > 1 else "random_numbers_of_workers"
        yield _CAUSES.found(cause, loader, seen=seen)
    if data.shared:
        cause = "shared_file" if data.workers > 1 else "file_of_workers"
        yield _CAUSES.found(cause, loader, seen=seen)
    if not memory or not data.workers:
        return
    if memory.threads > LIMIT.usual_threads:
        yield _CAUSES.found("threads_of_workers", loader, seen=seen)
    grew = memory.workers_last - memory.workers_first
    if data.objects >= LIMIT.many_objects and grew >= LIMIT.much_memory:
        yield _CAUSES.found("workers_copy_objects", loader, seen=seen, grew=grew)


def _memory(seen: Symptoms) -> Found:
    memory = seen.memory
    if not memory or memory.steps < LIMIT.enough_steps or seen.run.evaluation_bytes > LIMIT.much_memory:
        return
    kept = seen.evidence.kept
    grew = memory.last - memory.first
    least = max(2 * LIMIT.much_memory, 0.1 * memory.first)
    if kept:  # how many steps there were is chance
        least = min(LIMIT.much_memory, max(LIMIT.sure_memory, LIMIT.memory_of_a_step * memory.steps))
    if grew > least:
        name, where = next(iter(kept.items()), ("", ""))
        yield _CAUSES.found("memory_grows", where, seen=seen, name=name, grew=grew)


CAUSES: tuple[Callable[[Symptoms], Found], ...] = (
    _outside, _modes, _collections, _graph_grows, _in_steps, _weights, _handling, _workers, _memory,
)  # fmt: skip


def _unnamed(seen: Symptoms, known: Sequence[Finding]) -> Found:
    """Lines that take much and have no cause above: said as what they are."""
    taken = {finding.where for finding in known}
    passes = {line.where for line in seen.evidence.lines if line.part != OWN}
    passes |= {os.path.basename(site.place) for site in seen.script.sites if site.role in _PASSES}
    sees_models = seen.run.of_step.get("forward", 0.0) > 0  # else the model is code of the script's own
    own = [step.parts[-1] for step in seen.run.plain] or [math.inf]  # the last of `OF_STEP`
    for line, share in seen.lines(OWN):
        is_needed = line.where in passes or any(_NEEDED.search(name) for name in line.calls)
        if share >= LIMIT.least and sees_models and line.where not in taken and not is_needed:
            is_rare = median(own) < line.seconds / seen.evidence.steps / 2  # a usual step spends less in all
            yield _CAUSES.found("own_line", line.where, share, seen=seen, text=line.text, is_rare=is_rare)
    # What is not in the graph has no backward pass, which usually takes longer than forward.
    is_longer = 0 < seen.share_of("backward") < seen.share_of("forward")
    for line, share in seen.lines("forward"):
        if is_longer and share >= LIMIT.least and not line.calls:
            yield _CAUSES.found("line_of_forward", line.where, share, text=line.text)
    if any(each.cause == "rows_one_by_one" or (each.share or 0.0) >= seen.loading for each in known):
        return
    # Lines that load about as much as the first one are named together with it.
    found = [(line, share) for line, share in seen.loading_lines() if line.where not in taken]
    found.sort(key=lambda each: -each[1])
    alike = [(line, share) for line, share in found if share >= LIMIT.alike * found[0][1]]
    total = sum(share for _, share in alike)
    if len(alike) > 1 and total >= LIMIT.least:
        yield _CAUSES.found("loading_lines", alike[0][0].where, total, seen=seen, lines=alike)
        return
    for line, share in found:
        if share >= LIMIT.least:
            yield _CAUSES.found("loading_line", line.where, share, seen=seen, text=line.text, part=line.part)


def ordered(ideas: Sequence[Finding]) -> list[Finding]:
    """Those that were tried and help, those that were not tried, and the others; the most first."""
    # A cause comes before a switch that may give more, if it is a plain waste, or gives about as much.
    bounds = [idea.weight for idea in ideas if idea.settings and idea.limit == "up to"]
    least = LIMIT.alike * max(bounds, default=0.0)

    def place(idea: Finding) -> tuple[bool, bool, bool, float]:
        is_cause = not idea.settings and idea.is_worth_a_sentence
        leads = is_cause and (idea.kind == "waste" or idea.weight >= least)
        gain = idea.measured.ratio if idea.measured else idea.weight
        return not idea.may_help, idea.measured is None, not leads, -gain

    return sorted(ideas, key=place)


def findings(seen: Symptoms) -> list[Finding]:
    """What is avoidable, the largest first."""
    found = [finding for cause in CAUSES for finding in cause(seen)]
    found += _unnamed(seen, [each for each in found if each.cause != "automatic_collection"])
    if seen.evidence.data and seen.evidence.data.workers and seen.script.device == "cpu":
        # What workers do not load any more leaves their cores to the steps, which get faster, too.
        found = [structs.replace(each, limit="") if each.cause in _LOADING else each for each in found]
    named = Counter(finding.where for finding in found)
    # Objects that are made in a cause are collected there.
    found = [each for each in found if each.cause != "automatic_collection" or named[each.where] == 1]
    return ordered(found)


# ---------------------------------------------------------------- switches


@dataclass(frozen=True)
class Switches:
    """What was seen, and some plain steps; `one_thread`: how many times as fast with one compute thread."""

    symptoms: Symptoms
    target: Target
    steps: Observation
    is_disturbed: bool = False
    one_thread: float | None = None

    @property
    def own(self) -> Recipe:
        return Recipe().replace(**self.target.own)

    @property
    def work_s(self) -> float:
        """A step whose batch is there at once; on a GPU the wait may hide work that remains."""
        return max(self.steps.step_s * (1 - self.steps.waiting), 1e-9)

    def idea(
        self, title: str, why: str, settings: Mapping[str, Value], left_s: float | None = None
    ) -> Iterator[Finding]:
        """A switch, if the first can be set, and gains: a step takes `left_s` at least, if that is known."""
        first = next(iter(settings))
        gain = self.steps.step_s / left_s if left_s else None
        recipe, _ = applicable(self.own.replace(**settings), self.target)
        left = {name: new for name, (new, _) in recipe.diff(self.own).items()}
        if first not in left or (gain is not None and gain < LIMIT.least_gain):
            return
        limit = "about" if first == "cpu_threads" else "up to"  # which was tried for a moment
        # Workers that have less to do leave their cores to the steps, which get faster, too.
        shares_cores = self.own.workers > 0 and self.target.device == "cpu"
        if limit == "up to" and (self.is_disturbed or shares_cores):
            gain = None
        share = self.symptoms.run.steps_share * (1 - 1 / gain) if gain else None
        change = f"{title}: {', '.join(f'{name}={shown(value)}' for name, value in left.items())}"
        yield Finding(title, why, change, share=share, limit=limit, settings=left)


def suggest(seen: Switches, causes: Collection[str] = ()) -> list[Finding]:
    """Switches to try, the most promising first, except what does not help against known `causes`."""
    found = [*_loading(seen), *_computing(seen)]
    if "rows_one_by_one" in causes:
        found = [idea for idea in found if idea.cause != "Loader workers"]
    return ordered(found)


def _loading(seen: Switches) -> Found:
    own = seen.own
    cores = seen.symptoms.cores
    step_s = seen.steps.step_s
    on_cpu = seen.target.device == "cpu"
    count = cores // 2 if on_cpu else cores
    workers = units.plural(own.workers, "worker") if own.workers else "no workers"
    if on_cpu and own.workers and own.workers + own.cpu_threads > cores:
        why = f"{workers} and cpu_threads={own.cpu_threads} share {units.plural(cores, 'core')}"
        yield from seen.idea("Fewer workers", why, {"workers": count if count < own.workers else 0})
        if own.cpu_threads > 1 and not seen.one_thread:
            yield from seen.idea("One compute thread", why, {"cpu_threads": 1})
    if seen.one_thread:
        why = f"threads wait for cores that others take: with one, steps were {seen.one_thread:.1f}× as fast"
        yield from seen.idea("One compute thread", why, {"cpu_threads": 1}, step_s / seen.one_thread)
    if own.workers < count:
        why = f"waiting for data takes {seen.steps.waiting:.0%} of a step, with {workers}"
        settings: dict[str, Value] = {"workers": count, "pin_memory": True, "non_blocking": True}
        left_s = max(seen.work_s, seen.steps.waiting * step_s / count)
        yield from seen.idea("Loader workers", why, settings, left_s)


def _computing(seen: Switches) -> Found:
    """What makes parts of the work faster, or saves them; of all but the optimizer, only measuring tells."""
    amp = seen.own.amp
    if amp == "off":
        amp = "bf16" if seen.target.bf16 else "fp16"
    if seen.target.device != "cpu" or seen.symptoms.cpu_has_bf16:
        yield from seen.idea("AMP", "matrix products and convolutions", {"amp": amp})
    for title, of in TEXTS["switches"].items():
        if title != "cuDNN benchmark" or seen.target.convolves:
            yield from seen.idea(title, of["why"], of["settings"])
    why = "the optimizer's own work"
    left_s = None
    step = seen.symptoms.run.of_step
    if seen.target.device == "cpu" and step:  # a GPU works on by itself
        step_s = seen.steps.step_s
        share = step["optimizer"] / max(sum(step.values()), 1e-9)
        why = f"the optimizer takes {share:.0%} of a step"
        left_s = max(step_s - min(share * step_s, seen.work_s), 0.02 * step_s)  # at most all of the work
    kind = "fused" if seen.symptoms.script.has_fused else "foreach"
    yield from seen.idea("Optimizer", why, {"optimizer_impl": kind}, left_s)
