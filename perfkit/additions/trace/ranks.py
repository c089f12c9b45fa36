"""Reads a folder or an archive with a trace of each rank: the figures of each, and which rank is late."""

import contextlib
import re
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from perfkit.additions.shared.intervals import Floats
from perfkit.additions.trace import formats
from perfkit.additions.trace.analysis import analyse, in_steps
from perfkit.additions.trace.events import Kind
from perfkit.additions.trace.formats import TraceError
from perfkit.additions.trace.health import said
from perfkit.additions.trace.model import Analysis, TraceRank
from perfkit.additions.trace.reader import Opens, Tell
from perfkit.additions.trace.table import Trace
from perfkit.show import units

_TRACE = re.compile(r"(.*/)?(?!\._)[^/]+\.json(\.gz)?", re.IGNORECASE)
"""Names that may belong to traces. macOS adds a file ._NAME for each NAME to an archive."""
_MOST = 64  # the most ranks that are read
_LATE = 0.05  # of a step: a rank is late if the others wait at least this share for it


class _Read(NamedTuple):
    """What is kept of a rank while the others are read."""

    number: int
    path: Path
    analysis: Analysis
    collectives: list[str]
    us_per_step: Floats  # of each collective


def read(path: Path, tell: Tell) -> Analysis:
    """The analysis of a trace, or of several ranks: then that of the late rank, or else of the first.

    An `InvalidValue` if it cannot be read, a `TraceError` if it holds no trace, or not one of each rank.
    """
    with _files(path) as files:
        if len(files) < 2:
            file = next(iter(files), path)
            return analyse(Trace(file, files.get(file), tell))
        each, left_out = _each(files, tell)
    analysis = each[0].analysis
    if len(each) > 1:
        _check(path, each)
        analysis = _together(each)
    if left_out:
        health = said("not_traces", names=units.clean(", ".join(left_out), 200))
        analysis = msgspec.structs.replace(analysis, health=[*analysis.health, health])
    return analysis


def _check(path: Path, each: list[_Read]) -> None:
    """Refuses traces that are not one per rank, such as traces of several stages."""
    numbers = [rank.number for rank in each]
    for rank in each:
        if rank.number < 0 or numbers.count(rank.number) > 1:
            why = "does not say its rank" if rank.number < 0 else f"is not the only one of rank {rank.number}"
            names = units.clean(", ".join(rank.path.name for rank in each), 400)
            what = f"{path} holds {len(each)} traces, but not one of each rank: {rank.path.name} {why}"
            raise TraceError(what, f"Give one of them by itself: {names}")


def _together(each: list[_Read]) -> Analysis:
    """The analysis of the rank that is shown, with what is known of all ranks."""
    rows, late = _compared(each)
    shown = late or each[0]
    others = [rank for rank in each if rank is not shown]
    errors = [
        said("other_rank", rank=rank.number, message=problem.message)
        for rank in others
        for problem in rank.analysis.health
        if problem.severity == "error"
    ]
    why = ", which is late" if late else ""
    return msgspec.structs.replace(
        shown.analysis,
        files=[str(rank.path) for rank in (shown, *others)],
        device={**shown.analysis.device, "ranks": [rank.number for rank in (shown, *others)]},
        ranks=rows,
        late_rank=late.number if late else None,
        health=[*shown.analysis.health, *errors, said("several_ranks", rank=shown.number, why=why)],
    )


@contextlib.contextmanager
def _files(path: Path) -> Iterator[dict[Path, Opens]]:
    """The traces in a folder or an archive, with functions that open them; empty for other files."""
    with contextlib.ExitStack() as stack:
        opens: dict[str, Opens] = {}
        try:
            if path.is_dir():
                opens = {file.name: partial(file.open, "rb") for file in path.iterdir() if file.is_file()}
            elif path.is_file() and zipfile.is_zipfile(path):
                archive = stack.enter_context(zipfile.ZipFile(path))
                opens = {name: partial(archive.open, name) for name in archive.namelist()}
            elif path.is_file() and _is_tar(path):
                tar = stack.enter_context(tarfile.open(path))
                opens = {each.name: partial(tar.extractfile, each) for each in tar if each.isfile()}
        except (*formats.DAMAGED, NotImplementedError) as error:  # a newer zip format, by a damaged byte
            raise TraceError(f"{path}: this archive is cut off or damaged", "Copy it again") from error
        named = sorted(filter(_TRACE.fullmatch, opens))
        if len(named) > _MOST or (path.is_dir() and not named):
            what = f"{path}: {len(named) or 'no'} files in it end in .json or .json.gz"
            raise TraceError(what, f"Name a folder with one trace of each rank, at most {_MOST}")
        yield {path / name: opens[name] for name in named}


def _is_tar(path: Path) -> bool:
    with contextlib.suppress(*formats.DAMAGED):  # such as a gzipped trace that is cut off early
        return tarfile.is_tarfile(path)
    return False


def _each(files: dict[Path, Opens], tell: Tell) -> tuple[list[_Read], list[str]]:
    """The ranks by number (-1: unknown), and the files that are not traces; a `TraceError` if none is one."""
    each = list[_Read]()
    left_out = list[str]()
    for name, opens in files.items():
        try:
            trace = Trace(name, opens, tell)
        except TraceError:
            left_out.append(name.name)
            if len(left_out) == len(files):
                raise
            continue
        number = trace.world.rank
        if number is None:
            in_name = re.search(r"rank\D?(\d{1,9})", name.name)
            number = int(in_name[1]) if in_name else -1
        rows = in_steps(trace, trace.rows(Kind.COLLECTIVE))
        rows = rows[np.argsort(trace.table.start[rows], kind="stable")]
        names, us = trace.text(trace.table.name[rows]), trace.duration(rows) / 1e3
        each.append(_Read(number, name, analyse(trace), names, us / (len(trace.steps.names) or 1)))
    return sorted(each, key=lambda rank: rank.number), left_out


def _compared(each: list[_Read]) -> tuple[list[TraceRank], _Read | None]:
    """The figures of each rank, and the rank that the others wait for: it waits least itself.

    A collective takes as long as its data need on the rank that comes last, and longer on the others, which
    wait for that rank. Only durations are compared, because the clocks of different machines differ.
    """
    times = [rank.us_per_step for rank in each]
    if any(rank.collectives != each[0].collectives for rank in each):  # they differ: compare their sums
        times = [us.sum(keepdims=True) for us in times]
    waiting = (np.stack(times) - np.min(times, axis=0)).sum(axis=1).tolist()
    rows = [_row(rank) for rank in each]
    if not all(row.communication_us is not None and row.mean_step_us for row in rows):
        return rows, None
    last = int(np.argmin(waiting))
    others = np.delete(waiting, last).mean() - waiting[last]
    is_late = others >= _LATE * (rows[last].mean_step_us or np.inf)
    rows = [msgspec.structs.replace(row, waiting_us=us) for row, us in zip(rows, waiting, strict=True)]
    return rows, each[last] if is_late else None


def _row(rank: _Read) -> TraceRank:
    talk = rank.analysis.communication or {}
    return TraceRank(
        rank=rank.number,
        mean_step_us=rank.analysis.mean_step_us,
        gpu_utilization=rank.analysis.gpu_utilization,
        computing_us=rank.analysis.mean_us["kernel"],
        communication_us=talk.get("total_us_per_step"),
        exposed_us=talk.get("exposed_us_per_step"),
        waiting_us=None,
    )
