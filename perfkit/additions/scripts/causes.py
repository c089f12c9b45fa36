"""What is avoidable in a script, and which switches to try: by what was measured or asked, never by a name.

What is said of each cause is in the table `causes.toml`; a function looks for one, or a few that are alike.
Switches have one model of gains (`Switches`): a plain step waits for data, then works. Loading can save the
wait, everything else a share of the work, by Amdahl's law. Where nothing that was seen tells, or other
programs take the cores, the gain is None.
"""

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec

from perfkit.additions.inside.lines import Line, text_at
from perfkit.additions.inside.trend import Trend
from perfkit.additions.scripts.evidence import Evidence
from perfkit.additions.scripts.messages import Observation, ScriptFacts
from perfkit.additions.scripts.run_account import CHECKPOINTS, COMPILING, EPOCHS, EVALUATION, OWN, Account
from perfkit.recipe import Recipe, Value
from perfkit.results.stats import Ratio
from perfkit.rules import Target, applicable
from perfkit.show import units

_LEAST = 0.1
"""Of the run: what takes less is not a cause, and half of it for causes that are plain to see."""
_MANY_OBJECTS, _MUCH_MEMORY = 100_000, 30e6
_CHEAP_SAMPLE_S = 300e-6
"""Rows in memory that take less cost their handling, not their content."""
_NEEDED = re.compile(r"(_loss|cross_entropy|Loss\.forward|zero_grad|clip_grad\w*|GradScaler\.\w+)$")
"""Functions between the passes of a step that belong to the training."""
_BATCHES = ("waiting", "data set", "collate")
"""Parts in which a batch is loaded, or waited for."""
_MANY_ROWS, _ENOUGH_STEPS = 8, 20
_USUAL_THREADS = 5
"""Of a loader worker, at most: its own, and those of its queues."""


class Finding(msgspec.Struct, frozen=True):
    """Something avoidable: what was seen, the change, the place.

    `share`: of the run without its start, None where only measuring tells; `urgency` orders such ones.
    `kind`: `time`, `memory`, or `data` where something trains on other data than meant.
    """

    cause: str
    evidence: str
    change: str
    where: str
    share: float | None
    urgency: float
    kind: str

    @property
    def gain(self) -> float | None:
        return None if self.share is None else 1 / max(1 - self.share, 0.01)

    @property
    def weight(self) -> float:
        return max(self.share or 0.0, self.urgency)


class Growth(msgspec.Struct, frozen=True):
    """Memory of the process, and of all its workers without what they share, before and after some steps."""

    steps: int
    first: int
    last: int
    workers_first: int = 0
    workers_last: int = 0
    threads: int = 0
    """Most threads of a worker."""


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

    def loads(self, *parts: str) -> float:
        """The share of the run in which steps wait for data, by parts of that."""
        seconds = sum(self.evidence.parts.get(part, 0.0) for part in parts)
        return seconds / self.evidence.steps_s * self.run.steps_share

    @property
    def loading(self) -> float:
        """All of it."""
        return self.loads("sampler", *_BATCHES)

    def loading_lines(self) -> Iterator[tuple[Line, float]]:
        """Lines that load, with their share of the run; of lines in workers, that is a share of the wait."""
        yield from self.lines("sampler", "data set", "collate")
        in_workers = self.evidence.loading.lines if self.evidence.loading else []
        total = sum(line.seconds for line in in_workers)
        for line in in_workers:
            yield line, self.loading * line.seconds / total

    def site(self, role: str) -> str:
        frames = next((site.frames for site in self.script.sites if site.role == role), [])
        places = [f"{frame.file}:{frame.line}" for frame in frames]
        return ", called in ".join(map(os.path.basename, places[:2]))

    def warned_at(self, text: str) -> str:
        """The place of a warning that the script printed; empty if it did not."""
        found = [line for line in self.printed if text in line]
        place = re.match(r"(.+?:\d+): \w*Warning", found[0]) if found else None
        return os.path.basename(place[1]) if place else ""


_TEXTS: dict[str, dict[str, Any]] = tomllib.loads(
    resources.files(__package__).joinpath("causes.toml").read_text(encoding="utf-8")
)
Found = Iterator[Finding]


def _found(cause: str, where: str = "", share: float | None = None, **facts: Any) -> Finding:
    text = _TEXTS[cause]
    evidence, change = (
        text[name].format(share=units.percent(share or 0.0), **facts) for name in ("seen", "change")
    )
    urgency, kind = text.get("urgency", 0.0), text.get("kind", "time")
    return Finding(cause, evidence, change, where, share or None, urgency, kind)


of_table = _found
"""For causes that are looked for elsewhere."""


# ---------------------------------------------------------------- outside of plain steps


def _outside(seen: Symptoms) -> Found:
    account, data = seen.run, seen.evidence.data
    facts: dict[str, Any] = {"steps": account.steps, "workers": data.workers if data else 0}
    counts = {EVALUATION: account.evaluations, EPOCHS: len(account.epochs), CHECKPOINTS: 1}
    starts = "workers_restart" if facts["workers"] else "epochs_start"
    if len(account.epochs) >= 0.9 * account.steps:
        starts = "epoch_in_each_step"
    causes = {
        EVALUATION: "evaluation" if account.evaluations <= account.steps / 2 else "frozen_model",
        EPOCHS: starts,
        CHECKPOINTS: "checkpoints",
    }
    sites = {EVALUATION: "evaluation", EPOCHS: "loader", CHECKPOINTS: "checkpoint"}
    for part, cause in causes.items():
        share, count = account.running(part), counts[part]
        least = _LEAST
        if part == CHECKPOINTS:  # other programs make steps long, but not those of the looks with one thread
            looked_at = seen.evidence.parts.get("checkpoint", 0.0) / max(
                sum(seen.evidence.parts.values()), 1e-9
            )
            least, share = _LEAST / 2, max(share, looked_at)
        if share >= least and not (part == EPOCHS and count < 2):
            each = units.duration(account.parts[part] / max(1, count))
            yield _found(cause, seen.site(sites[part]), share, count=count, each=each, **facts)


def _gradients_in_evaluation(seen: Symptoms) -> Found:
    grew = seen.run.evaluation_bytes
    if where := seen.site("evaluation with gradients"):
        more = f"; the process grew by {units.size(grew)} in one" if grew > _MUCH_MEMORY else ""
        yield _found("evaluation_with_gradients", where, grew=more)


def _compiled_again(seen: Symptoms) -> Found:
    evidence, account = seen.evidence, seen.run
    is_over = any("recompile_limit" in line for line in seen.printed)
    if is_over or (account.compiled >= 3 and evidence.shapes >= 3):
        limit = "; past its limit, torch runs the model uncompiled" if is_over else ""
        graphs, share = {"graphs": evidence.graphs, "shapes": evidence.shapes}, account.running(COMPILING)
        yield _found("compiled_again", seen.site("forward"), share, limit=limit, **graphs)


# ---------------------------------------------------------------- in each step


def _modes(seen: Symptoms) -> Found:
    for name, place in seen.evidence.is_on.items():
        yield _found(name, os.path.basename(place))
    if seen.script.device == "cpu" and seen.script.settings.get("amp") == "bf16" and not seen.cpu_has_bf16:
        yield _found("bf16_without_instructions", seen.site("forward"))
    if seen.evidence.denormal > 0.01:
        yield _found("denormal_numbers", values=units.percent(seen.evidence.denormal))


def _collections(seen: Symptoms) -> Found:
    evidence = seen.evidence
    total = sum(evidence.collecting.values())
    share = total / evidence.steps_s * seen.run.steps_share
    each = units.duration(total / max(1, evidence.steps))
    places = sorted(evidence.collecting, key=evidence.collecting.__getitem__, reverse=True)
    asked_for = [place for place in places if "collect(" in text_at(place)]
    if asked_for and share >= _LEAST / 2:
        text, where = text_at(asked_for[0]), os.path.basename(asked_for[0])
        yield _found("explicit_collection", where, share, each=each, text=text)
    elif share >= 2 * _LEAST:
        yield _found("automatic_collection", os.path.basename(places[0]), share, each=each)


def _graph_grows(seen: Symptoms) -> Found:
    """Each backward pass walks through more of the past than the one before."""
    nodes = [*seen.evidence.nodes.items()]
    if len(nodes) < 3 or not nodes[0][1] < nodes[len(nodes) // 2][1] < nodes[-1][1]:
        return
    (first_step, first), (last_step, last) = nodes[0], nodes[-1]
    slower = ""
    if seen.trend and seen.trend.kind == "grows":
        slower = f"; each step takes {units.duration(seen.trend.per_step)} more than the one before"
    if last >= 1.05 * first:
        where, ends = seen.site("retain_graph") or seen.site("backward"), {"first": first, "last": last}
        yield _found("graph_grows", where, first_step=first_step, last_step=last_step, slower=slower, **ends)


def _state_dict(seen: Symptoms) -> Found:
    for line, share in seen.lines(OWN):
        if share >= _LEAST / 2 and any("state_dict" in name for name in line.calls):
            yield _found("state_dict_in_each_step", line.where, share, text=line.text)


def _dense_embedding(seen: Symptoms) -> Found:
    rows, places = seen.evidence.rows, [*seen.lines("optimizer")]
    share = sum(part for _, part in places)
    if rows and rows.touched < 0.2 * rows.count and rows.of_weights > 0.5 and share >= 2 * _LEAST:
        yield _found("dense_embedding", places[0][0].where, share, rows=rows.count, touched=rows.touched)


# ---------------------------------------------------------------- loading


def _handling(seen: Symptoms) -> Found:
    data, loading, share = seen.evidence.data, seen.evidence.loading, seen.loads(*_BATCHES)
    if where := seen.warned_at("Creating a tensor from a list of numpy.ndarrays is extremely slow"):
        lines = [*seen.loading_lines(), *seen.lines(OWN)]
        yield _found("tensor_from_list", where, sum(part for line, part in lines if line.where == where))
        return
    if not (data and loading and data.in_memory) or data.can_batch or share < _LEAST / 2:
        return
    rows = round(loading.samples / loading.batches)
    has_own_collate = any(line.part == "collate" and not line.calls for line, _ in seen.loading_lines())
    if rows >= _MANY_ROWS and loading.seconds / loading.samples <= _CHEAP_SAMPLE_S and not has_own_collate:
        names, each = ", ".join(data.in_memory), units.duration(loading.batch_s)
        yield _found("rows_one_by_one", seen.site("loader"), share, rows=rows, names=names, each=each)


def _hdf5(seen: Symptoms) -> Found:
    data, loading = seen.evidence.data, seen.evidence.loading
    if data and loading and data.open_files:
        rows, names = max(data.open_files.values()), ", ".join(data.open_files)
        where = next((line.where for line, _ in seen.loading_lines()), "")
        chunk = f", and reads a chunk of {rows} rows" if rows > 1 else ""
        each, share = units.duration(loading.seconds / loading.samples), seen.loading if rows > 1 else None
        yield _found("open_hdf5", where, share, chunk=chunk, names=names, each=each)


def _workers(seen: Symptoms) -> Found:
    data, memory, loader = seen.evidence.data, seen.memory, seen.site("loader")
    if not data:
        return
    facts: dict[str, Any] = {"dataset": data.kind, "workers": data.workers}
    if data.is_iterable and not data.is_split and data.workers > 1:
        yield _found("iterable_not_split", loader, **facts)
    if data.generators:
        cause = "same_random_numbers" if data.workers > 1 else "random_numbers_of_workers"
        yield _found(cause, loader, names=", ".join(data.generators), **facts)
    if not memory or not data.workers:
        return
    if memory.threads > _USUAL_THREADS:
        yield _found("threads_of_workers", loader, threads=memory.threads, cores=seen.cores, **facts)
    grew = memory.workers_last - memory.workers_first
    if data.objects >= _MANY_OBJECTS and grew >= _MUCH_MEMORY:
        facts |= {"grew": units.size(grew), "size": units.size(memory.workers_last), "steps": memory.steps}
        name = f"{data.kind}.{data.of[0]}"
        yield _found("workers_copy_objects", loader, name=name, objects=data.objects, **facts)


def _memory(seen: Symptoms) -> Found:
    memory, is_explained = seen.memory, seen.run.evaluation_bytes > _MUCH_MEMORY
    if not memory or is_explained or memory.steps < _ENOUGH_STEPS:
        return
    grew = memory.last - memory.first
    if grew > (_MUCH_MEMORY if seen.evidence.kept else max(2 * _MUCH_MEMORY, 0.1 * memory.first)):
        grew_by, size, kept = units.size(grew), units.size(memory.last), seen.evidence.kept
        of = f": `{next(iter(kept))}` grows, and holds tensors with their graphs" if kept else ""
        where, steps = next(iter(kept.values()), ""), memory.steps
        yield _found("memory_grows", where, steps=steps, of=of, grew=grew_by, size=size)


CAUSES: tuple[Callable[[Symptoms], Found], ...] = (
    _outside, _gradients_in_evaluation, _compiled_again, _modes, _collections, _graph_grows, _state_dict,
    _dense_embedding, _handling, _hdf5, _workers, _memory,
)  # fmt: skip


def _unnamed(seen: Symptoms, known: Sequence[Finding]) -> Found:
    """Lines that take much and have no cause above: said as what they are."""
    taken = {finding.where for finding in known}
    passes = {line.where for line in seen.evidence.lines if line.part != OWN}
    sees_models = seen.run.of_step.get("forward", 0.0) > 0  # else the model is code of the script's own
    slower = ", and it takes longer and longer" if seen.growing == OWN else ""
    for line, share in seen.lines(OWN):
        is_needed = line.where in passes or any(_NEEDED.search(name) for name in line.calls)
        if share >= _LEAST and sees_models and line.where not in taken and not is_needed:
            yield _found("own_line", line.where, share, text=line.text, slower=slower)
    if any((finding.share or 0.0) >= seen.loading for finding in known):
        return
    each = units.duration(seen.evidence.loading.batch_s) if seen.evidence.loading else "some time"
    for line, share in seen.loading_lines():
        if share >= _LEAST and line.where not in taken:
            yield _found("loading_line", line.where, share, text=line.text, part=line.part, each=each)


def findings(seen: Symptoms) -> list[Finding]:
    """What is avoidable, the largest first."""
    found = [finding for cause in CAUSES for finding in cause(seen)]
    found += _unnamed(seen, [each for each in found if each.cause != "automatic_collection"])
    named = Counter(finding.where for finding in found)
    # Objects that are made in a cause are collected there.
    found = [each for each in found if each.cause != "automatic_collection" or named[each.where] == 1]
    return sorted(found, key=lambda finding: -finding.weight)


# ---------------------------------------------------------------- switches

_LEAST_GAIN = 1.03
"""A smaller gain is not told from chance."""
_HELPS = 1.05
"""What a suggestion that was tried must have given, to be suggested still."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """One switch that may make a script faster.

    `why` is what was seen that speaks for it. `gain` is the predicted ratio of samples/s, None where nothing
    that was seen tells, and a bound if `at_most`: as if its part took no time. `measured`: what it gave
    when it was tried.
    """

    title: str
    settings: dict[str, bool | int | str]
    why: str
    gain: float | None = None
    at_most: bool = False
    measured: Ratio | None = None

    @property
    def may_help(self) -> bool:
        """Whether it was not tried, or gave something."""
        gave = self.measured
        return gave is None or (gave.ratio >= _HELPS and gave.verdict != "no measurable difference")


@dataclass(frozen=True)
class Switches:
    """What was seen; `one_thread`: how many times as fast steps were with one compute thread."""

    target: Target
    steps: Observation
    cores: int
    has_fused: bool = True
    is_disturbed: bool = False
    cpu_has_bf16: bool = True
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
    ) -> Iterator[Suggestion]:
        """A suggestion, unless its first switch is on already, cannot be set here, or gains nothing.

        `left_s`: what a step would take; None where only measuring tells.
        """
        first, gain = next(iter(settings)), self.steps.step_s / left_s if left_s else None
        recipe, _ = applicable(self.own.replace(**settings), self.target)
        left = {name: new for name, (new, _) in recipe.diff(self.own).items()}
        if first not in left or (gain is not None and gain < _LEAST_GAIN):
            return
        is_bound = gain is not None and first != "cpu_threads"  # which was tried for a moment
        if is_bound and self.is_disturbed:
            gain, is_bound = None, False
        yield Suggestion(title=title, settings=left, why=why, gain=gain, at_most=is_bound)


def suggest(seen: Switches, causes: Collection[str] = ()) -> list[Suggestion]:
    """What to try, the most promising first, except what does not help against known `causes`."""
    ideas = [*_loading(seen), *_computing(seen)]
    if "rows_one_by_one" in causes:
        ideas = [idea for idea in ideas if idea.title != "Loader workers"]
    return ordered(ideas)


def ordered(ideas: Sequence[Suggestion]) -> list[Suggestion]:
    """By what they gave, then by what they can give; those that were tried for nothing come last."""

    def place(idea: Suggestion) -> tuple[int, float]:
        if idea.measured:
            return 0 if idea.may_help else 3, -idea.measured.ratio
        return 1 if idea.gain else 2, -(idea.gain or 0.0)

    return sorted(ideas, key=place)


def _loading(seen: Switches) -> Iterator[Suggestion]:
    own, cores, waiting, step_s = seen.own, seen.cores, seen.steps.waiting, seen.steps.step_s
    on_cpu = seen.target.device == "cpu"
    count = cores // 2 if on_cpu else cores
    workers = units.plural(own.workers, "worker") if own.workers else "no workers"
    if on_cpu and own.workers and own.workers + own.cpu_threads > cores:
        why = f"{workers} and cpu_threads={own.cpu_threads} share {units.plural(cores, 'core')}"
        yield from seen.idea("Fewer workers", why, {"workers": count if count < own.workers else 0})
        if own.cpu_threads > 1 and not seen.one_thread:
            yield from seen.idea("One compute thread", why, {"cpu_threads": 1})
    if seen.one_thread:
        why = f"threads wait for busy cores: with one, steps were {seen.one_thread:.1f}× as fast"
        yield from seen.idea("One compute thread", why, {"cpu_threads": 1}, step_s / seen.one_thread)
    if own.workers < count:
        why = f"{waiting:.0%} of a step is spent waiting for data, with {workers}"
        settings: dict[str, Value] = {"workers": count, "pin_memory": True, "non_blocking": True}
        # Workers that are there may take cores from the work, so that a wait says nothing of its size.
        left_s = None if own.workers and on_cpu else max(seen.work_s, waiting * step_s / count)
        yield from seen.idea("Loader workers", why, settings, left_s)


def _computing(seen: Switches) -> Iterator[Suggestion]:
    """What makes parts of the work faster, or saves them; of all but the optimizer, only measuring tells."""
    steps, where, work_s = seen.steps, seen.target, seen.work_s
    on_cuda, convolutions = where.device == "cuda", "convolutions"
    amp = seen.own.amp if seen.own.amp != "off" else "bf16" if where.bf16 else "fp16"
    if where.device != "cpu" or seen.cpu_has_bf16:
        yield from seen.idea("AMP", "matrix products and convolutions", {"amp": amp})
    if on_cuda:
        yield from seen.idea("TF32", "matrix products and convolutions", {"fp32_precision": "tf32"})
    if where.convolves:
        yield from seen.idea("channels_last", convolutions, {"channels_last": True})
        if on_cuda:
            yield from seen.idea("cuDNN benchmark", convolutions, {"cudnn_benchmark": True})
    yield from seen.idea("torch.compile", "small operators, and Python between them", {"compile": True})
    if on_cuda:
        pinned: dict[str, Value] = {"pin_memory": True, "non_blocking": True}
        yield from seen.idea("Pinned memory", "copies to the device", pinned)
    why, left_s = "the optimizer's own work", None
    if steps.optimizer_s is not None:  # at most all of the work
        share = steps.optimizer_s / steps.block.seconds
        why += f": {share:.0%} of a step"
        left_s = max(steps.step_s - min(share * steps.step_s, work_s), 0.02 * steps.step_s)
    kind = "fused" if seen.has_fused else "foreach"
    yield from seen.idea("Optimizer", why, {"optimizer_impl": kind}, left_s)
