"""One file of a trace, and reading it: what most people need is `load`."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from msgspec import Struct

from perfkit.errors import TraceError
from perfkit.trace.columns import Builder, Columns
from perfkit.trace.link import Links, link
from perfkit.trace.reader import ADVICE, Document, decode_or_none, read
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
    """Problems of the file."""
    simulated: dict[str, str] | None = None
    """The basis of a simulated trace; None for a recorded one."""

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
        """Paths as they were named."""
        return [rank.path for rank in self.ranks]


def load(paths: Paths) -> Trace:
    """Reads `*.pt.trace.json` or `.json.gz`: one file, one per rank, or a folder of them.

    Raises:
        TraceError: a file is missing, is no trace, or nothing in it can be read.
    """
    several = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    if len(several) == 1 and several[0].is_dir():
        several = sorted(path for path in several[0].iterdir() if path.name.endswith((".json", ".json.gz")))
    if not several:
        raise TraceError("no trace file was given", ADVICE)
    return Trace(tuple(_load(path) for path in several))


def _load(path: Path) -> Rank:
    document, builder = Document(), Builder()
    try:
        for events in read(path, document):
            builder.add(events)
        columns = builder.finish()
    except TraceError as error:
        raise TraceError(f"{path.name}: {error.what}", error.remedy) from error
    except MemoryError as error:
        raise TraceError(f"{path.name} does not fit into memory", "Record fewer steps") from error
    return Rank(
        str(path),
        columns,
        properties=decode_or_none(document.properties, list[DeviceProperties]) or [],
        world=decode_or_none(document.world, World) or World(),
        dropped=document.dropped + builder.dropped,
        truncated=document.truncated,
        notes=document.notes,
        simulated=decode_or_none(document.simulated, dict[str, str]),
    )
