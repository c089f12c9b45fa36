"""What the loader did for each batch, joined to the steps that took them: supply against demand.

The workers note the times themselves: three clock reads and one short line of JSON a batch. All
processes of a machine share the monotonic clock they use.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from perfkit.trace.timeline import PARTS, Lane, Lanes


class Fetch(Struct, frozen=True, kw_only=True):
    """A worker's note on one batch, taken or not: times in seconds on the processes' shared clock.

    `worker` is -1 for the loop itself.
    """

    number: int
    worker: int
    start_s: float
    fetched_s: float
    collated_s: float


class Loading(Struct, frozen=True, kw_only=True):
    """Supply and demand over the batches of a profile."""

    workers: int
    parts: dict[str, list[float]]
    """Seconds of each batch that the profiled steps took, by part of its way."""
    fetches: list[Fetch]
    """All batches that were prepared during these steps."""
    supply_samples_per_s: float
    """What the workers could deliver if they never had to wait."""
    demand_samples_per_s: float
    """What the steps could consume if they never had to wait for data."""

    @property
    def verdict(self) -> str:
        """Which side is short."""
        ratio = self.supply_samples_per_s / self.demand_samples_per_s
        if self.workers == 0:
            return "the loop itself loads each batch and waits for it; workers would load in parallel"
        if ratio >= 1:
            return f"the workers could deliver {ratio:.1f}× what the steps take: more of them would not help"
        return f"the workers deliver {ratio:.0%} of what the steps could take: the step waits for data"


def read_notes(folder: Path) -> Iterator[Fetch]:
    """The notes that the workers of one loader left in a folder."""
    for file in folder.glob("*.jsonl"):
        for line in file.read_bytes().splitlines():
            with contextlib.suppress(msgspec.DecodeError):  # the end of the process cut the line off
                yield msgspec.json.decode(line, type=Fetch)


def join(
    fetches: Iterable[Fetch],
    taken: Iterable[tuple[int, float, float]],
    batch_size: int,
    workers: int,
    marks: Sequence[float],
) -> Loading | None:
    """Joins what the workers noted with what the loop took; None if no batch is in both.

    Args:
        fetches: what the workers noted.
        taken: number, time of the request, time of receipt of the batches that the loop took.
        batch_size: samples in a batch.
        workers: processes that fetch; 0 = the loop itself.
        marks: starts of the profiled steps, and the end of the last.
    """
    by_number = {fetch.number: fetch for fetch in fetches}
    way = [(by_number[number], asked, received) for number, asked, received in taken if number in by_number]
    if not way:
        return None
    parts = {
        "fetch": [fetch.fetched_s - fetch.start_s for fetch, *_ in way],
        "collate": [fetch.collated_s - fetch.fetched_s for fetch, *_ in way],
        "queue": [max(0.0, received - fetch.collated_s) for fetch, _, received in way],
        "wait": [received - asked for _, asked, received in way],
    }
    meanwhile = [f for f in by_number.values() if f.collated_s > marks[0] and f.start_s < marks[-1]]
    cost = sum(parts["fetch"] + parts["collate"]) / len(way)
    busy = (marks[-1] - marks[0] - sum(parts["wait"])) / len(way)
    return Loading(
        workers=workers,
        parts=parts,
        fetches=sorted(meanwhile, key=lambda fetch: fetch.number),
        supply_samples_per_s=max(1, workers) * batch_size / max(cost, 1e-9),
        demand_samples_per_s=batch_size / max(busy, 1e-9),
    )


def lanes(loading: Loading, window: Lanes, start_s: float) -> Lanes:
    """A timeline with a row for each worker on top.

    Args:
        loading: what the workers did.
        window: the recording's rows.
        start_s: start of the timeline's step on the shared clock.
    """
    texts, rows = list(window.texts), []
    zero_s = start_s - window.steps[0][window.step] / 1e9
    for worker in sorted({fetch.worker for fetch in loading.fetches}):
        bars = []
        for fetch in (fetch for fetch in loading.fetches if fetch.worker == worker):
            times = (
                ("fetch", fetch.start_s, fetch.fetched_s),
                ("collate", fetch.fetched_s, fetch.collated_s),
            )
            for part, began, ended in times:
                start, length = round((began - zero_s) * 1e9), round((ended - began) * 1e9)
                if -length < start < window.duration:
                    bars.append((start, length, 0, 1, len(texts), PARTS.index(part), 0))
                    texts.append(f"batch {fetch.number}: {part}")
        label = "loop" if worker < 0 else f"worker {worker}"
        rows.append(Lane(label=label, kind="worker", rows=[list(map(list, zip(*bars, strict=True)))]))
    return msgspec.structs.replace(window, lanes=[*rows, *window.lanes], texts=texts)
