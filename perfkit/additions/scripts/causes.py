"""Known causes of slow training, recognised by what was measured or asked; a name alone is never enough.

What is said of each is in the table `causes.toml`. A function looks for one, or for a few that are alike.
"""

import os
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import msgspec

from perfkit.additions.inside.lines import Line, text_at
from perfkit.additions.inside.trend import Trend
from perfkit.additions.scripts.evidence import Evidence
from perfkit.additions.scripts.messages import ScriptFacts
from perfkit.additions.scripts.run_account import CHECKPOINTS, COMPILING, EPOCHS, EVALUATION, OWN, Account
from perfkit.show import units

_LEAST = 0.1
"""Of the run: what takes less is not a cause, and half of it for causes that are plain to see."""
_MANY_OBJECTS, _MUCH_MEMORY = 100_000, 30e6
_CHEAP_SAMPLE_S = 300e-6
"""Rows in memory that take less cost their handling, not their content."""
_NEEDED = re.compile(r"(_loss|cross_entropy|Loss\.forward|zero_grad|clip_grad\w*|GradScaler\.\w+)$")
"""Functions between the passes of a step that belong to the training."""
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
        """How many times as fast the run is without it, at most."""
        return None if self.share is None else 1 / max(1 - self.share, 0.01)

    @property
    def weight(self) -> float:
        """By which findings are ordered."""
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


@dataclass(frozen=True)
class Symptoms:
    """All that was seen of a script; `growing` is the part of a step that grows."""

    script: ScriptFacts
    account: Account
    evidence: Evidence
    cores: int
    cpu_has_bf16: bool = True
    trend: Trend | None = None
    growing: str = ""
    memory: Growth | None = None
    printed: Sequence[str] = ()
    """Warnings of the script."""

    def lines(self, *parts: str) -> Iterator[tuple[Line, float]]:
        """The lines of these parts of a step, each with its share of the run."""
        for line in self.evidence.lines:
            if line.part in parts:
                yield line, line.seconds / self.evidence.steps_s * self.account.steps_share

    @property
    def loading(self) -> float:
        """The share of the run in which steps load data, or wait for them."""
        parts = self.evidence.parts
        loading = sum(parts.get(part, 0.0) for part in ("waiting", "data set", "collate"))
        return loading / self.evidence.steps_s * self.account.steps_share

    def loading_lines(self) -> Iterator[tuple[Line, float]]:
        """Lines that load, with their share of the run; of lines in workers, that is a share of the wait."""
        yield from self.lines("data set", "collate")
        in_workers = self.evidence.loading.lines if self.evidence.loading else []
        total = sum(line.seconds for line in in_workers)
        for line in in_workers:
            yield line, self.loading * line.seconds / total

    def site(self, role: str) -> str:
        """The place of a call, and from where it is called."""
        places = self.account.sites.get(role, []) or _frames(self.script, role)
        return ", called in ".join(map(os.path.basename, places[:2]))

    def warned_at(self, text: str) -> str:
        """The place of a warning that the script printed; empty if it did not."""
        found = [line for line in self.printed if text in line]
        place = re.match(r"(.+?:\d+): \w*Warning", found[0]) if found else None
        return os.path.basename(place[1]) if place else ""


def _frames(script: ScriptFacts, role: str) -> list[str]:
    sites = [site for site in script.sites if site.role == role]
    return [f"{frame.file}:{frame.line}" for site in sites[:1] for frame in site.frames[:1]]


_TEXTS: dict[str, dict[str, Any]] = tomllib.loads(
    resources.files(__package__).joinpath("causes.toml").read_text(encoding="utf-8")
)
Found = Iterator[Finding]


def _found(cause: str, where: str = "", share: float | None = None, **facts: Any) -> Finding:
    """A cause of the table, with its texts filled in."""
    text = _TEXTS[cause]
    evidence, change = (
        text[name].format(share=units.percent(share or 0.0), **facts) for name in ("seen", "change")
    )
    urgency, kind = text.get("urgency", 0.0), text.get("kind", "time")
    return Finding(cause, evidence, change, where, share or None, urgency, kind)


# ---------------------------------------------------------------- outside of plain steps


def _outside(seen: Symptoms) -> Found:
    """Evaluation, starts of epochs and checkpoints that take much of the run."""
    account, data = seen.account, seen.evidence.data
    facts: dict[str, Any] = {"steps": account.steps, "workers": data.workers if data else 0}
    counts = {EVALUATION: account.evaluations, EPOCHS: len(account.epochs), CHECKPOINTS: 1}
    causes = {
        EVALUATION: "evaluation" if account.evaluations <= account.steps / 2 else "frozen_model",
        EPOCHS: "workers_restart" if facts["workers"] else "epochs_start",
        CHECKPOINTS: "checkpoints",
    }
    sites = {EVALUATION: "evaluation", EPOCHS: "loader", CHECKPOINTS: "checkpoint"}
    for part, cause in causes.items():
        share, count = account.running(part), counts[part]
        if share >= _LEAST and not (part == EPOCHS and count < 2):
            each = units.duration(account.parts[part] / max(1, count))
            yield _found(cause, seen.site(sites[part]), share, count=count, each=each, **facts)


def _gradients_in_evaluation(seen: Symptoms) -> Found:
    grew = seen.account.evaluation_bytes
    if where := seen.site("evaluation with gradients"):
        more = f"; the process grew by {units.size(grew)} in one" if grew > _MUCH_MEMORY else ""
        yield _found("evaluation_with_gradients", where, grew=more)


def _compiled_again(seen: Symptoms) -> Found:
    evidence, account = seen.evidence, seen.account
    is_over = any("recompile_limit" in line for line in seen.printed)
    if is_over or (account.compiled >= 3 and evidence.shapes >= 3):
        limit = "; past its limit, torch runs the model uncompiled" if is_over else ""
        graphs, share = {"graphs": evidence.graphs, "shapes": evidence.shapes}, account.running(COMPILING)
        yield _found("compiled_again", seen.site("forward"), share, limit=limit, **graphs)


# ---------------------------------------------------------------- in each step


def _modes(seen: Symptoms) -> Found:
    """Something for debugging is left on, or numbers are slow."""
    for name, place in seen.evidence.is_on.items():
        yield _found(name, os.path.basename(place))
    if seen.script.device == "cpu" and seen.script.settings.get("amp") == "bf16" and not seen.cpu_has_bf16:
        yield _found("bf16_without_instructions", seen.site("forward"))
    if seen.evidence.denormal > 0.01:
        yield _found("denormal_numbers", values=units.percent(seen.evidence.denormal))


def _collections(seen: Symptoms) -> Found:
    evidence = seen.evidence
    total = sum(evidence.collecting.values())
    share, each = (
        total / evidence.steps_s * seen.account.steps_share,
        units.duration(total / max(1, evidence.steps)),
    )
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
    facts: dict[str, Any] = {
        "first": first,
        "first_step": first_step,
        "last": last,
        "last_step": last_step,
        "slower": slower,
    }
    if last >= 1.05 * first:
        yield _found("graph_grows", seen.site("retain_graph") or seen.site("backward"), **facts)


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
    """Samples in memory cost their handling: one by one, or as lists of arrays."""
    data, loading, share = seen.evidence.data, seen.evidence.loading, seen.loading
    if where := seen.warned_at("Creating a tensor from a list of numpy.ndarrays is extremely slow"):
        lines = [*seen.loading_lines(), *seen.lines(OWN)]
        yield _found("tensor_from_list", where, sum(part for line, part in lines if line.where == where))
        return
    if not (data and loading and data.in_memory) or data.can_batch or share < _LEAST / 2:
        return
    rows = round(loading.samples / loading.batches)
    has_own_collate = any(line.part == "collate" and not line.calls for line, _ in seen.loading_lines())
    if rows >= _MANY_ROWS and loading.seconds / loading.samples <= _CHEAP_SAMPLE_S and not has_own_collate:
        facts: dict[str, Any] = {
            "rows": rows,
            "names": ", ".join(data.in_memory),
            "each": units.duration(loading.batch_s),
        }
        yield _found("rows_one_by_one", seen.site("loader"), share, **facts)


def _hdf5(seen: Symptoms) -> Found:
    data, loading = seen.evidence.data, seen.evidence.loading
    if data and loading and data.open_files:
        rows, where = (
            max(data.open_files.values()),
            next((line.where for line, _ in seen.loading_lines()), ""),
        )
        facts = {
            "names": ", ".join(data.open_files),
            "each": units.duration(loading.seconds / loading.samples),
        }
        chunk = f", and reads a chunk of {rows} rows" if rows > 1 else ""
        yield _found("open_hdf5", where, seen.loading if rows > 1 else None, chunk=chunk, **facts)


def _workers(seen: Symptoms) -> Found:
    """What workers load twice, draw alike, copy, or crowd."""
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
    memory, is_explained = seen.memory, seen.account.evaluation_bytes > _MUCH_MEMORY
    if not memory or is_explained or memory.steps < _ENOUGH_STEPS:
        return
    grew = memory.last - memory.first
    if grew > max(2 * _MUCH_MEMORY, 0.1 * memory.first):
        facts: dict[str, Any] = {
            "grew": units.size(grew),
            "size": units.size(memory.last),
            "steps": memory.steps,
        }
        yield _found("memory_grows", **facts)


CAUSES: tuple[Callable[[Symptoms], Found], ...] = (
    _outside, _gradients_in_evaluation, _compiled_again, _modes, _collections, _graph_grows, _state_dict,
    _dense_embedding, _handling, _hdf5, _workers, _memory,
)  # fmt: skip


def _unnamed(seen: Symptoms, known: Sequence[Finding]) -> Found:
    """Lines that take much and have no cause above: said as what they are."""
    taken = {finding.where for finding in known}
    passes = {line.where for line in seen.evidence.lines if line.part != OWN}
    sees_models = seen.account.of_step.get("forward", 0.0) > 0  # else the model is code of the script's own
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
    named = Counter(finding.where for finding in found)
    # Objects that are made in a cause are collected there.
    found = [each for each in found if each.cause != "automatic_collection" or named[each.where] == 1]
    found += _unnamed(seen, found)
    return sorted(found, key=lambda finding: -finding.weight)
