"""Causes in how batches are made, and in what loader workers share."""

import os
import re
from collections.abc import Sequence

from msgspec import structs

from perfkit.additions.advice.finding import Causes, Finding, Found
from perfkit.additions.scripts.messages import ALIKE, BATCHES, LEAST, MUCH_MEMORY, OWN, Symptoms
from perfkit.additions.shared.lines import places

_CAUSES = Causes(__name__)
LIMIT = _CAUSES.limits


def _files(seen: Symptoms) -> Found:
    data, loading = seen.evidence.data, seen.evidence.loading
    if data and loading and data.open_files:
        rows = max(data.open_files.values())
        where = next((line.where for line, _ in seen.loading_lines()), "")
        yield _CAUSES.found("open_hdf5", where, seen.loading if rows > 1 else None, seen=seen, rows=rows)


def _archives(seen: Symptoms) -> Found:
    data = seen.evidence.data
    if not (data and data.archives):
        return
    for line, share in seen.loading_lines():
        if LIMIT.reads_array in line.calls and share >= LEAST / 2:
            yield _CAUSES.found("array_of_archive", line.where, share, text=line.text, names=data.archives)


def _handling(seen: Symptoms) -> Found:
    """What is in memory is handled number by number, or row by row."""
    data, loading = seen.evidence.data, seen.evidence.loading
    share = seen.share_of(*BATCHES)
    warnings = [text for text in seen.printed if "from a list of numpy.ndarrays is extremely slow" in text]
    if warnings:  # `train.py:41: UserWarning: …`
        where = os.path.basename(warnings[0].partition(": ")[0])
        looked_at = [*seen.loading_lines(), *seen.lines(OWN)]
        own = [line for line, _ in looked_at if line.where == where]
        share = sum(part for line, part in looked_at if line.where == where)
        calls = [call for line in own for call in re.findall(LIMIT.makes_tensor, line.text)]
        more = [line for line, part in looked_at if line not in own and part >= LEAST / 2]
        others = [line.where for line in more if any(call in line.text for call in calls)]
        found = _CAUSES.found("tensor_from_list", where, share, others=others)
        yield structs.replace(found, limit="") if others else found
        return
    if not (data and loading and data.in_memory) or data.can_batch:
        return
    if data.workers:  # more of the wait is not for making batches
        share = min(share, seen.of_run(max(loading.wall_s, loading.seconds)))
    rows = round(loading.samples / loading.batches)
    has_own_collate = any(line.part == "collate" and not line.calls for line, _ in seen.loading_lines())
    is_cheap = loading.seconds / loading.samples <= LIMIT.cheap_sample_s
    if share >= LEAST / 2 and rows >= LIMIT.many_rows and is_cheap and not has_own_collate:
        yield _CAUSES.found("rows_one_by_one", seen.site("loader"), share, seen=seen, rows=rows)


def _padding(seen: Symptoms) -> Found:
    """What a model computes on the ends of rows that are shorter than others."""
    padding, beyond, length = seen.evidence.padding
    part = beyond if beyond >= ALIKE * padding else padding  # the former whichever rows come together
    share = part * seen.share_of("forward", "backward")
    if padding >= LIMIT.much_padding and share >= LEAST:
        files = {frame.file for site in seen.script.sites for frame in site.frames}
        pads = [place for file in files for place in places(LIMIT.pads, file)]
        where = pads[0] if len(pads) == 1 else seen.site("loader")
        yield _CAUSES.found("padding", where, share, padding=padding, beyond=beyond, length=length)


def _workers(seen: Symptoms) -> Found:
    data, loading, memory = seen.evidence.data, seen.evidence.loading, seen.memory
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
    if data.workers and loading and loading.batches >= LIMIT.enough_batches:
        batches = max(seen.evidence.steps, loading.batches)  # some may have been made before these steps
        waiting = seen.evidence.parts.get("waiting", 0.0) / batches
        making = max(loading.wall_s, loading.seconds) / loading.batches
        share = seen.of_run(batches * (waiting - making))
        if waiting >= LIMIT.longer * making and share >= LEAST / 2:  # to hand them over takes longer
            yield _CAUSES.found("workers_cost_more", loader, share, seen=seen, making=making, waiting=waiting)
    if not memory or not data.workers:
        return
    if memory.threads > LIMIT.usual_threads:
        yield _CAUSES.found("threads_of_workers", loader, seen=seen)
    grew = memory.workers_last - memory.workers_first
    if data.objects >= LIMIT.many_objects and grew >= MUCH_MEMORY:
        yield _CAUSES.found("workers_copy_objects", loader, seen=seen, grew=grew)


CAUSES = (_files, _archives, _handling, _padding, _workers)


def lines(seen: Symptoms, known: Sequence[Finding]) -> Found:
    """The lines that load, if no `known` cause takes as much; those that take about the same together."""
    if any(each.cause == "rows_one_by_one" or (each.share or 0.0) >= seen.loading for each in known):
        return
    taken = {finding.where for finding in known}
    found = [(line, share) for line, share in seen.loading_lines() if line.where not in taken]
    found.sort(key=lambda each: -each[1])
    of_batches = [(line, share) for line, share in found if line.part != "sampler"]
    alike = [(line, share) for line, share in of_batches if share >= ALIKE * of_batches[0][1]]
    total = sum(share for _, share in alike)
    if len(alike) > 1 and total >= LEAST:
        yield _CAUSES.found("loading_lines", alike[0][0].where, total, seen=seen, lines=alike)
        found = [each for each in found if each not in of_batches]
    for line, share in found:
        if share >= LEAST:
            cause = "sampler_line" if line.part == "sampler" else "loading_line"
            yield _CAUSES.found(cause, line.where, share, seen=seen, line=line)
