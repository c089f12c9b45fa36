"""What a learner shares, and what the board keeps of it: everything that arrives is checked here."""

from __future__ import annotations

import datetime
import math
from typing import Annotated

import msgspec
from msgspec import Meta

from perfkit import machine
from perfkit.errors import InvalidValue, PerfkitError
from perfkit.results import run as runs
from perfkit.results.pairing import Role
from perfkit.results.run import Raw, Run
from perfkit.results.stats import Ratio
from perfkit.results.store import ORIGIN

MAX_BYTES = 256 * 1024
"""Of one post; what `slim` leaves of a run has a few kilobytes."""
_MAX_ROUNDS, _MAX_PAIRINGS = 1_000, 50

Client = Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
Word = Annotated[str, Meta(min_length=1, max_length=200)]


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """Who predicted what, for one stage."""

    client: Client
    """A random number of this kernel: two learners of one name stay apart."""
    name: Annotated[str, Meta(min_length=1, max_length=40)]
    workload: Word
    stage: Word
    title: Word
    device: Word
    machine: Annotated[str, Meta(max_length=200)] = ""
    """In a line; that of the run counts, where there is one."""
    prediction: Annotated[float, Meta(ge=0.001, le=1000)] | None = None
    """Times as fast."""
    confidence: Annotated[float, Meta(ge=0, le=1)] | None = None
    """That the prediction holds, 0 to 1."""


class Shared(Prediction, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One learner's prediction, result, or both, for one stage."""

    role: Role = "previous"
    """What the run is compared with."""
    run: msgspec.Raw = msgspec.Raw(b"null")


class Entry(Prediction, frozen=True, kw_only=True):
    """A row of the board."""

    when: str
    """UTC, ISO 8601."""
    ratio: Ratio | None = None
    origin: str = ""
    """`simulated`, `recorded`, or nothing: measured."""
    reason: str = ""
    """Why there is no result."""

    @property
    def key(self) -> tuple[str, ...]:
        """Sharing again replaces what has the same key."""
        return self.client, self.workload, self.stage, self.device


def slim(run: Run) -> Run:
    """A run without what a board has no use for, so that it travels quickly."""
    raw = Raw(block_samples_per_s=run.raw.block_samples_per_s, disturbed=run.raw.disturbed)
    return msgspec.structs.replace(run, raw=raw, mechanism=[], losses=[], warnings=[], communication=None)


def entry(post: bytes) -> Entry:
    """The row of a post; nothing in it is executed, every field and number is checked.

    Raises:
        InvalidValue: it is not what perfkit shares.
    """
    try:
        shared = msgspec.json.decode(post, type=Shared)
        body = bytes(shared.run)
        run = None if body == b"null" else runs.decode(body)
        return _entry(shared, run)
    except (*runs.INVALID, ArithmeticError) as problem:
        raise InvalidValue(f"this is not what perfkit shares: {problem}", _REMEDY) from None
    except PerfkitError as problem:
        raise InvalidValue(problem.what, _REMEDY) from None


_REMEDY = "Share a panel with pk.share(panel), with the version of perfkit that the room has"


def _entry(shared: Shared, run: Run | None) -> Entry:
    if not shared.name.strip():
        raise ValueError("the name is empty")
    if run is None and shared.prediction is None:
        raise ValueError("it has neither a prediction nor a run")
    row = Entry(
        when=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **{name: getattr(shared, name) for name in Prediction.__struct_fields__},
    )
    if run is None:
        return row
    if (run.stage, run.workload) != (shared.stage, shared.workload):
        raise ValueError("its run is of another stage or workload")
    _check_numbers(run)
    pairing = run.pairing(shared.role) if run.status == "ok" else None
    ratio = pairing.ratio if pairing else None
    if ratio and not all(
        math.isfinite(value) and value > 0 for value in (ratio.ratio, ratio.low, ratio.high)
    ):
        raise ValueError("its ratio is not a finite number above 0")
    return msgspec.structs.replace(
        row, machine=machine.describe(run.machine)[:200], ratio=ratio, reason=run.reason[:200],
        origin="simulated" if run.simulated else "recorded" if ORIGIN in run.facts else "",
    )  # fmt: skip


def _check_numbers(run: Run) -> None:
    """Refuses what would take long to compute, or could not be computed."""
    every = [pairs for pairing in run.pairings for pairs in pairing.pairs]
    if len(every) > _MAX_PAIRINGS:
        raise ValueError(f"it has {len(every)} comparisons; the most are {_MAX_PAIRINGS}")
    for pairs in every:
        rates = [*pairs.own_samples_per_s, *pairs.other_samples_per_s]
        if not 0 < len(pairs.own_samples_per_s) <= _MAX_ROUNDS or len(rates) > 2 * _MAX_ROUNDS:
            raise ValueError(f"a comparison has 1 to {_MAX_ROUNDS} rounds")
        if not all(1e-6 < rate < 1e12 for rate in rates):
            raise ValueError("a rate is not between 0.000001 and 1,000,000,000,000 samples/s")
