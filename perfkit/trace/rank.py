"""One file of a trace, and reading it: what most people need is `load`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from msgspec import Struct

from perfkit.errors import TraceError
from perfkit.trace.columns import Builder, Columns
from perfkit.trace.document import Parsed, decode_or_none, parse, parse_pieces
from perfkit.trace.link import Links, link
from perfkit.trace.source import Irregular, Limits, read, stream
from perfkit.trace.steps import Activity, Steps, activity, find_steps

Paths = str | Path | Iterable[str | Path]


class DeviceProperties(Struct):
    """A GPU as the profiler describes it; None for what is missing."""

    id: int | None = None
    name: str | None = None
    computeMajor: int | None = None
    computeMinor: int | None = None
    numSms: int | None = None
    totalGlobalMem: int | None = None


class World(Struct):
    """The process group of a distributed run; None for what is missing."""

    backend: str | None = None
    rank: int | None = None
    world_size: int | None = None


@dataclass(frozen=True)
class Rank:
    """One file: its columns, and what is derived from them on first use."""

    path: str
    columns: Columns
    properties: list[DeviceProperties]
    world: World
    dropped: int
    """Events with impossible values, which were left out."""
    truncated: bool
    notes: list[str]
    """What was wrong with the file."""
    simulated: dict[str, str] | None = None
    """What a simulated trace rests on; None for a recorded one."""

    @cached_property
    def links(self) -> Links:
        """Launches tied to kernels and operators."""
        return link(self.columns)

    @cached_property
    def steps(self) -> Steps:
        """The steps' windows."""
        return find_steps(self.links)

    @cached_property
    def activity(self) -> Activity:
        """Unions of intervals by kind."""
        return activity(self.links)

    @property
    def has_device(self) -> bool:
        """Whether any device event was recorded."""
        return len(self.links.device) > 0


@dataclass(frozen=True)
class Trace:
    """One or several files of one run, one file per rank."""

    ranks: tuple[Rank, ...]

    @property
    def files(self) -> list[str]:
        """Paths as given."""
        return [rank.path for rank in self.ranks]


def load(paths: Paths, limits: Limits | None = None) -> Trace:
    """Reads `*.pt.trace.json` or `.json.gz`: one file, or one per rank.

    Raises:
        TraceError: a file is missing, is no trace, or nothing in it can be read.
    """
    several = [paths] if isinstance(paths, str | Path) else list(paths)
    if not several:
        raise TraceError("no trace file was given", "Give at least one *.pt.trace.json[.gz].")
    return Trace(tuple(_load(Path(path), limits or Limits()) for path in several))


def _load(path: Path, limits: Limits) -> Rank:
    try:
        builder, parsed = _read(path, limits)
        columns = builder.finish()
    except TraceError as error:
        raise TraceError(f"{path.name}: {error.what}", error.remedy) from error
    except MemoryError as error:
        raise TraceError(f"{path.name} does not fit into memory", "Record fewer steps.") from error
    properties = decode_or_none(parsed.document.deviceProperties, list[DeviceProperties]) or []
    world = decode_or_none(parsed.document.distributedInfo, World) or World()
    dropped = parsed.dropped + builder.dropped
    simulated = decode_or_none(parsed.document.simulated, dict[str, str])
    return Rank(str(path), columns, properties, world, dropped, parsed.truncated, parsed.notes, simulated)


def _read(path: Path, limits: Limits) -> tuple[Builder, Parsed]:
    """Piece by piece, or as a whole where the file is not as the profiler writes it."""
    builder = Builder()
    try:
        return builder, Parsed(parse_pieces(stream(path, limits), builder.add))
    except Irregular:
        builder = Builder()
    parsed = parse(*read(path, limits))
    builder.add(parsed.document.traceEvents)
    return builder, parsed
