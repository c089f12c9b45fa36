"""Tables of operators, kernels, copies and synchronising calls, over the ranks of a trace."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfkit.trace.columns import Kind
from perfkit.trace.device import tensor_core
from perfkit.trace.intervals import Floats, Ints
from perfkit.trace.link import Links
from perfkit.trace.model import Kernel, Operator, Sync, Transfer

Place = tuple[str | None, str | None]  # operator, file:line


@dataclass(frozen=True, slots=True)
class Groups:
    """Distinct keys and the group number of each row."""

    keys: list[Any]
    of_row: Ints

    def sum(self, values: Floats) -> list[float]:
        """Sum per group; NaN counts as 0."""
        return np.bincount(self.of_row, np.nan_to_num(values), len(self.keys)).tolist()  # type: ignore[no-any-return]

    def count(self) -> list[int]:
        """Rows per group."""
        return np.bincount(self.of_row, minlength=len(self.keys)).tolist()  # type: ignore[no-any-return]

    def largest(self, values: Floats) -> list[float]:
        """Largest value per group."""
        high = np.full(len(self.keys), -np.inf)
        np.maximum.at(high, self.of_row, values)
        return high.tolist()

    def mean(self, values: Floats, weights: Floats) -> list[float | None]:
        """Mean per group weighted by time (by count if all are zero); None where no value is known."""
        weights = np.where(np.isnan(values), 0.0, np.maximum(weights, 1e-9))
        total, mass = self.sum(values * weights), self.sum(weights)
        return [t / m if m > 0 else None for t, m in zip(total, mass, strict=True)]


def group(keys: Sequence[Hashable]) -> Groups:
    """Numbers the distinct keys in order of appearance."""
    seen: dict[Hashable, int] = {}
    codes = [seen.setdefault(key, len(seen)) for key in keys]
    return Groups(list(seen), np.array(codes, np.int64))


def _gather(parts: Sequence[tuple[list[Any], Sequence[Floats]]]) -> tuple[list[Any], list[Floats]]:
    """Keys and columns of all ranks, concatenated."""
    columns = [np.concatenate(column) for column in zip(*(values for _, values in parts), strict=True)]
    return [key for keys, _ in parts for key in keys], columns


def operators(ranks: list[Links], has_device: bool) -> list[Operator]:
    """By name, input shapes and types; sorted by own device time, else own host time."""
    keys, columns = _gather([_operator_calls(links) for links in ranks])
    groups = group(keys)
    sums = [groups.sum(column) for column in columns]
    rows = [
        Operator(
            name=name, input_shapes=dims, input_dtypes=types, calls=int(calls), host_total_us=host,
            host_self_us=host_self, device_total_us=device if has_device else None,
            device_self_us=own if has_device else None,
        )
        for (name, (dims, types)), calls, host, host_self, device, own in zip(groups.keys, *sums, strict=True)
    ]  # fmt: skip
    return sorted(rows, key=lambda row: (-(row.device_self_us or 0.0), -row.host_self_us, row.name))


def _operator_calls(links: Links) -> tuple[list[Any], list[Floats]]:
    """By (name, (dims, types)): calls, and µs of host total, host self, device total, device self."""
    columns, ops = links.columns, links.ops
    host = columns.duration(ops.rows) / 1e3
    nested, tied = ops.parent >= 0, links.device_op >= 0
    inner = np.bincount(ops.parent[nested], host[nested], len(ops.rows))
    own = np.zeros(len(ops.rows))
    np.add.at(own, links.device_op[tied], columns.duration(links.device[tied]) / 1e3)
    shapes = [*((dims or None, types or None) for dims, types in columns.shapes), (None, None)]
    codes = columns.name[ops.rows].astype(np.int64) * len(shapes) + columns.shape[ops.rows] % len(shapes)
    unique, of_row = np.unique(codes, return_inverse=True)
    keys = [(columns.names[code // len(shapes)], shapes[code % len(shapes)]) for code in unique.tolist()]
    values = (np.ones(len(host)), host, np.maximum(host - inner, 0), ops.inclusive(own), own)
    return keys, [np.bincount(of_row, column, len(keys)).astype(np.float64) for column in values]


def _launched(links: Links, kind: Kind) -> tuple[Ints, Ints, list[Place]]:
    """Device rows of a kind, their launches (-1: none) and the places of the launches."""
    mine = links.columns.kind[links.device] == kind
    op, launch = links.device_op[mine], links.launch[mine]
    return links.device[mine], launch, links.places(launch, op)


def kernels(ranks: list[Links]) -> list[Kernel]:
    """By name, the longest in total first; with the place that most of a kernel's time comes from."""
    parts = []
    for links in ranks:
        columns, (rows, _, places) = links.columns, _launched(links, Kind.KERNEL)
        values = (columns.duration(rows) / 1e3, columns.blocks[rows], columns.occupancy[rows])
        parts.append((list(zip(columns.texts(rows), places, strict=True)), values))
    keys, (time, blocks, occupancy) = _gather(parts)
    by_place, names = group(keys), group([name for name, _ in keys])
    order = sorted(zip(by_place.sum(time), by_place.keys, strict=True), key=lambda pair: pair[0])
    main: dict[str, Place] = {name: place for _, (name, place) in order}
    rows_ = [
        Kernel(
            name=name, calls=calls, total_us=total, mean_us=total / calls, max_us=high, min_us=-low,
            blocks_per_sm=per_sm, occupancy=filled, tensor_core=tensor_core(name),
            operator=main[name][0], frame=main[name][1],
        )
        for name, calls, total, high, low, per_sm, filled in zip(
            names.keys, names.count(), names.sum(time), names.largest(time), names.largest(-time),
            names.mean(blocks, time), names.mean(occupancy, time), strict=True,
        )
    ]  # fmt: skip
    return sorted(rows_, key=lambda row: (-row.total_us, row.name))


_COPY = re.compile(r"(HtoD|DtoH|DtoD|HtoH|PtoP)(?:.*\((\w+) -> (\w+)\))?")


def transfers(ranks: list[Links], steps: int) -> list[Transfer]:
    """Copies by direction, host memory and place, the longest in total first."""
    parts = []
    for links in ranks:
        rows, launch, places = _launched(links, Kind.MEMCPY)
        here, there = links.columns.bytes[rows], links.columns.bytes[launch]  # ROCm records it at the launch
        size = np.where(here >= 0, here, np.where(launch >= 0, there, -1))
        keys = [(*_direction(t), *place) for t, place in zip(links.columns.texts(rows), places, strict=True)]
        parts.append((keys, (links.columns.duration(rows) / 1e3, np.where(size >= 0, size, np.nan))))
    keys, (time, size) = _gather(parts)
    groups = group(keys)
    sums = [groups.sum(values) for values in (time, size, np.isnan(size) * 1.0)]
    rows_ = [
        Transfer(
            direction=direction, host_memory=memory, operator=operator, frame=frame, calls=calls,
            bytes=None if unknown else int(total), total_us=us,
            gb_per_s=total / us / 1e3 if us and not unknown else None,
            calls_per_step=calls / steps, us_per_step=us / steps,
        )
        for (direction, memory, operator, frame), calls, us, total, unknown in zip(
            groups.keys, groups.count(), *sums, strict=True
        )
    ]  # fmt: skip
    return sorted(rows_, key=lambda row: -row.total_us)


def _direction(name: str) -> tuple[str, str | None]:
    match = _COPY.search(name[:200])
    if match is None:
        return name, None
    ends = " ".join(filter(None, match.groups()[1:])).lower()
    return match[1], next((word for word in ("pageable", "pinned") if word in ends), None)


_WAITS = re.compile(r"Synchronize|^(cudaMemcpy|hipMemcpy|cuMemcpy)(?!.*Async)(?!.*Peer)")
_WAITING_OPS = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")


def is_wait(name: str) -> bool:
    """Whether a runtime call of this name makes the host wait for the device."""
    return _WAITS.search(name[:200]) is not None


def syncs(ranks: list[Links], steps: int) -> list[Sync]:
    """Runtime calls and operators that wait for the device, the longest in total first."""
    parts = []
    for links in ranks:
        columns, ops = links.columns, links.ops
        calls = np.flatnonzero(np.isin(links.calls, columns.named(links.calls, is_wait)))
        at = np.flatnonzero(np.isin(ops.rows, columns.named(ops.rows, _WAITING_OPS.__contains__)))
        rows = np.concatenate((links.calls[calls], ops.rows[at]))
        places = links.places(rows, np.concatenate((links.call_op[calls], ops.parent[at])))
        kinds = ["runtime"] * len(calls) + ["operator"] * len(at)
        keys = list(zip(columns.texts(rows), kinds, places, strict=True))
        parts.append((keys, (columns.duration(rows) / 1e3,)))
    keys, (time,) = _gather(parts)
    groups = group(keys)
    rows_ = [
        Sync(
            call=call, kind=kind, operator=place[0], frame=place[1], calls=calls, total_us=us,
            calls_per_step=calls / steps, ms_per_step=us / 1e3 / steps,
        )
        for (call, kind, place), calls, us in zip(groups.keys, groups.count(), groups.sum(time), strict=True)
    ]  # fmt: skip
    return sorted(rows_, key=lambda row: -row.total_us)
