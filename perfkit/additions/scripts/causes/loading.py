"""Causes in how batches are made, and in what loader workers share."""

import itertools
import os
import re
from collections.abc import Sequence

from msgspec import structs

from perfkit.additions.advice.finding import Causes, Finding, Found
from perfkit.additions.scripts.messages import ALIKE, BATCHES, LEAST, MUCH_MEMORY, OWN, Symptoms, Transform
from perfkit.additions.shared.attribution import TimedLine
from perfkit.additions.shared.positions import places

_CAUSES = Causes(__name__)
LIMIT = _CAUSES.limits


def _files(symptoms: Symptoms) -> Found:
    data, loading = symptoms.evidence.data, symptoms.evidence.loading
    if data and loading and data.open_files:
        rows = max(data.open_files.values())
        where = next((line.where for line, _ in symptoms.loading_lines()), "")
        share = symptoms.loading if rows > 1 else None
        yield _CAUSES.found("open_hdf5", where, share, symptoms=symptoms, rows=rows)


def _archives(symptoms: Symptoms) -> Found:
    lines = _lines_of_archives(symptoms)
    total = sum(share for _, share in lines)
    if total >= LEAST / 2:
        line, others = lines[0][0], [line.where for line, _ in lines[1:]]
        facts = {"text": line.text, "names": _archives_of(symptoms), "others": others}
        yield _CAUSES.found("array_of_archive", line.where, total, **facts)


def _lines_of_archives(symptoms: Symptoms) -> list[tuple[TimedLine, float]]:
    """The lines that read an array of an archive, with their shares of the run."""
    if not _archives_of(symptoms):
        return []
    return [(line, share) for line, share in symptoms.loading_lines() if LIMIT.reads_array in line.calls]


def _archives_of(symptoms: Symptoms) -> list[str]:
    data, loading = symptoms.evidence.data, symptoms.evidence.loading
    return sorted({*(data.archives if data else []), *(loading.archives if loading else [])})


def _shrinks_late(symptoms: Symptoms) -> Found:
    """Transforms that work on whole images, of which a later one keeps a small part."""
    loading = symptoms.evidence.loading
    if not (loading and loading.timed_s):
        return
    of_run = min(symptoms.loading, symptoms.of_run(max(loading.wall_s, loading.seconds)))
    for pipeline, at in [(each, at) for each in loading.pipelines for at in range(len(each.transforms))]:
        moved_past = _before_shrink(pipeline.transforms, at)
        named = [each for each in moved_past if each.seconds >= LIMIT.part_of_loading * loading.timed_s]
        named.sort(key=lambda each: -each.seconds)
        part = sum(each.seconds for each in named) / loading.timed_s
        if part >= LIMIT.much_of_loading and part * of_run >= LEAST:
            yield _CAUSES.found(
                "shrinks_late",
                os.path.basename(pipeline.place),
                part * of_run,
                names=[each.name for each in named],
                part=part,
                by=pipeline.transforms[at],
                before="" if len(moved_past) == at else moved_past[0].name,
                trains_alike=all(each.name in LIMIT.pixelwise for each in moved_past),
            )


def _before_shrink(transforms: Sequence[Transform], at: int) -> list[Transform]:
    """The transforms before one that shrinks images, as far as these had the same size; else none."""
    by = transforms[at]
    if by.name not in LIMIT.shrinks or not 0 < by.after <= LIMIT.kept * by.before:
        return []
    backwards = reversed(transforms[:at])
    same_size = itertools.takewhile(lambda each: each.before == each.after == by.before, backwards)
    return [*same_size][::-1]


def _places(symptoms: Symptoms, pattern: str) -> list[str]:
    """The lines in files of the script that match a pattern."""
    files = {frame.file for site in symptoms.script.sites for frame in site.frames}
    return [place for file in sorted(files) for place in places(pattern, file)]


def _handling(symptoms: Symptoms) -> Found:
    """Data in memory that is handled number by number, or row by row."""
    data, loading = symptoms.evidence.data, symptoms.evidence.loading
    share = symptoms.share_of(*BATCHES)
    warnings = [text for text in symptoms.printed if LIMIT.slow_list in text]
    if warnings:  # `train.py:41: UserWarning: …`
        where = os.path.basename(warnings[0].partition(": ")[0])
        shares = [*symptoms.loading_lines(), *symptoms.lines(OWN)]
        warned = [line for line, _ in shares if line.where == where]
        share = sum(part for line, part in shares if line.where == where)
        calls = [call for line in warned for call in re.findall(LIMIT.makes_tensor, line.text)]
        unwarned = [line for line, part in shares if line not in warned and part >= LEAST / 2]
        others = [line.where for line in unwarned if any(call in line.text for call in calls)]
        finding = _CAUSES.found("tensor_from_list", where, share, others=others)
        yield structs.replace(finding, limit="") if others else finding
        return
    if not (data and loading and data.in_memory) or data.can_batch:
        return
    if data.workers:  # the rest of the wait is not for making batches
        share = min(share, symptoms.of_run(max(loading.wall_s, loading.seconds)))
    rows = round(loading.samples / loading.batches)
    has_own_collate = any(line.part == "collate" and not line.calls for line, _ in symptoms.loading_lines())
    is_cheap = loading.seconds / loading.samples <= LIMIT.cheap_sample_s
    if share >= LEAST / 2 and rows >= LIMIT.many_rows and is_cheap and not has_own_collate:
        yield _CAUSES.found("rows_one_by_one", symptoms.site("loader"), share, symptoms=symptoms, rows=rows)


def _padding(symptoms: Symptoms) -> Found:
    """Padding at the ends of short rows, with which a model computes."""
    padding, beyond, length = symptoms.evidence.padding
    part = beyond if beyond >= ALIKE * padding else padding  # `beyond`, whichever rows come together
    share = part * symptoms.share_of("forward", "backward")
    if padding >= LIMIT.much_padding and share >= LEAST:
        padding_lines = _places(symptoms, LIMIT.pads)
        where = padding_lines[0] if len(padding_lines) == 1 else symptoms.site("loader")
        yield _CAUSES.found("padding", where, share, padding=padding, beyond=beyond, length=length)


def _workers(symptoms: Symptoms) -> Found:
    data, loading, memory = symptoms.evidence.data, symptoms.evidence.loading, symptoms.memory
    loader = symptoms.site("loader")
    if not data:
        return
    if data.is_iterable and not data.is_split and data.workers > 1:
        yield _CAUSES.found("iterable_not_split", loader, symptoms=symptoms)
    if data.generators:
        cause = "same_random_numbers" if data.workers > 1 else "random_numbers_of_workers"
        yield _CAUSES.found(cause, loader, symptoms=symptoms)
    if data.shared:
        cause = "shared_file" if data.workers > 1 else "file_of_workers"
        yield _CAUSES.found(cause, loader, symptoms=symptoms)
    if data.workers and loading and loading.batches >= LIMIT.enough_batches:
        batches = max(symptoms.evidence.steps, loading.batches)  # some may have been made before these steps
        waiting = symptoms.evidence.parts.get("waiting", 0.0) / batches
        making = max(loading.wall_s, loading.seconds) / loading.batches
        share = symptoms.of_run(batches * (waiting - making))
        if waiting >= LIMIT.longer * making and share >= LEAST / 2:  # the rest is handing batches over
            yield _CAUSES.found("workers_cost_more", loader, share, data=data, making=making, waiting=waiting)
    if not memory or not data.workers:
        return
    if memory.threads > LIMIT.usual_threads:
        yield _CAUSES.found("threads_of_workers", loader, symptoms=symptoms)
    grew = memory.workers_last - memory.workers_first
    if data.objects >= LIMIT.many_objects and grew >= MUCH_MEMORY:
        yield _CAUSES.found("workers_copy_objects", loader, symptoms=symptoms, grew=grew)


CAUSES = (_files, _archives, _shrinks_late, _handling, _padding, _workers)


def lines(symptoms: Symptoms, findings: Sequence[Finding]) -> Found:
    """The lines that load, if no finding takes as much; one finding has those that take about the same."""
    explaining = [finding for finding in findings if (finding.share or 0.0) >= symptoms.loading]
    if explaining or any(finding.cause == "rows_one_by_one" for finding in findings):
        return
    of_archives = {line.where for line, _ in _lines_of_archives(symptoms)}
    places_found = of_archives | {finding.where for finding in findings}
    candidates = [(line, share) for line, share in symptoms.loading_lines() if line.where not in places_found]
    candidates.sort(key=lambda candidate: -candidate[1])
    of_batches = [(line, share) for line, share in candidates if line.part != "sampler"]
    alike = [(line, share) for line, share in of_batches if share >= ALIKE * of_batches[0][1]]
    total = sum(share for _, share in alike)
    if len(alike) > 1 and total >= LEAST:
        yield _CAUSES.found("loading_lines", alike[0][0].where, total, symptoms=symptoms, lines=alike)
        candidates = [candidate for candidate in candidates if candidate not in of_batches]
    for line, share in candidates:
        if share >= LEAST:
            cause = "sampler_line" if line.part == "sampler" else "loading_line"
            finding = _CAUSES.found(cause, line.where, share, symptoms=symptoms, line=line)
            yield symptoms.found_around(finding, line)
