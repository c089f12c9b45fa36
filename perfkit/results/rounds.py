"""Rounds of two runs: what a comparison is computed from. Only raw values are stored; the rest is derived."""

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from msgspec import Meta

from perfkit.results import stats
from perfkit.results.stats import AAPair, Nested, Ratio, Spread

Role = Literal["previous", "baseline"]  # what a run is compared with: the stage before it, or the first one
Flags = np.ndarray[Any, np.dtype[np.bool_]]

# The values that a file from outside may hold. No results could be computed from others.
Rate = Annotated[float, Meta(gt=1e-6, lt=1e12)]  # samples/s
Seconds = Annotated[float, Meta(ge=0, lt=1e9)]
Duration = Annotated[float, Meta(gt=0, lt=1e9)]  # seconds that are used as a divisor
Share = Annotated[float, Meta(ge=0, lt=1e3)]
Count = Annotated[int, Meta(ge=0)]
RoundCount = Annotated[int, Meta(gt=0)]  # the rounds of an incarnation


def undisturbed(disturbed: Sequence[float], count: int) -> Flags:
    """Which of `count` rounds other programs left undisturbed; all rounds if too few are."""
    is_clean: Flags = np.array(stats.shares(disturbed, count)) <= stats.CLEAN
    return is_clean if is_clean.sum() >= min(stats.MIN_ROUNDS, count) else np.ones(count, bool)


class Rounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """samples/s of two runs, slice by slice."""

    own_samples_per_s: list[Rate]
    other_samples_per_s: list[Rate]
    disturbed: list[Share] = []
    """The share of the cores that others took in each round; empty if it was not measured."""
    incarnations: list[RoundCount] = []  # rounds in each incarnation; empty if there is only one
    interleaved: bool = True  # whether both were measured in the same rounds
    spread: Spread | None = None
    """How much equal processes differ on that machine, as far as it was known then; None if it was not."""

    @property
    def sizes(self) -> list[int]:
        return self.incarnations or [len(self.own_samples_per_s)]

    def nested(self, usual: Spread = stats.UNKNOWN) -> Nested:
        """The mean of the logarithm of the ratio of both runs; the spread is `usual` if it is not known."""
        spread = self.spread or usual
        own = np.log(self.own_samples_per_s)
        other = np.log(self.other_samples_per_s)
        weights = stats.weights(self.disturbed, own.size)
        if self.interleaved:
            return stats.nested(own - other, self.sizes, weights, spread)
        return stats.difference(
            stats.nested(own, self.sizes, weights, spread), stats.nested(other, self.sizes, weights, spread)
        )


class Pairing(Rounds, frozen=True, kw_only=True, omit_defaults=True):
    """The rounds of two runs: what a comparison is computed from.

    It has no rounds itself if the two were only measured apart: then their ratio follows from `via`.
    """

    against: str
    role: Role
    interleaved: bool  # as for any rounds, but never left out of a file
    precision: Share = stats.PRECISION
    """The half width / ratio up to which an interval without an effect means no difference."""
    via: list[Rounds] = []
    """Further factors of the ratio: the rounds of every stage that was kept in between."""
    band: Share | None = None
    """For simulated runs, the expected error of the ratio, as a fraction; None for measured runs."""

    def __post_init__(self) -> None:
        for part in (self, *self.via):
            if len(part.own_samples_per_s) != len(part.other_samples_per_s):
                raise ValueError("its two lists of rates differ in length")
            if part.incarnations and sum(part.incarnations) != len(part.own_samples_per_s):
                raise ValueError("its incarnations do not add up to the number of its rounds")
        if not self.factors or not all(part.own_samples_per_s for part in self.factors):
            raise ValueError("it has no rounds")

    @property
    def known_spread(self) -> Spread:
        """How much equal processes differ, for the interval. Simulated processes do not differ."""
        if self.band is not None:
            return stats.ONE_PROCESS
        return self.spread or stats.UNKNOWN

    @property
    def rounds(self) -> Rounds:
        fields = {name: getattr(self, name) for name in Rounds.__struct_fields__}
        return Rounds(**fields)

    @property
    def factors(self) -> list[Rounds]:
        """The rounds whose ratios are multiplied."""
        own = [self.rounds] if self.own_samples_per_s else []
        return [*own, *self.via]

    @property
    def has_spoiled_turns(self) -> bool:
        """Whether sides took turns while others disturbed them, which may have caused a difference."""
        in_turns = [part for part in self.factors if not part.interleaved]
        return any(stats.is_spoiled(part.disturbed, len(part.own_samples_per_s)) for part in in_turns)

    @property
    def ratio(self) -> Ratio:
        """How many times as fast this run is as the other, with its interval and verdict."""
        means = [part.nested(self.known_spread) for part in self.factors]
        centre = sum(mean.centre for mean in means)
        half = math.hypot(*(mean.half for mean in means))
        fewest = min(len(part.own_samples_per_s) for part in self.factors)
        ratio = stats.judged(centre, half, fewest, self.precision)
        if self.has_spoiled_turns:
            ratio = msgspec.structs.replace(ratio, verdict="undecided")
        return ratio if self.band is None else stats.predicted(ratio, self.band)

    @property
    def clean_and_disturbed(self) -> tuple[Ratio, Ratio] | None:
        """The ratios in the clean and in the disturbed rounds, if they differ by more than chance."""
        shares = np.array(self.disturbed)
        if not self.interleaved or shares.size != len(self.own_samples_per_s):
            return None
        logs = np.log(self.own_samples_per_s) - np.log(self.other_samples_per_s)
        parts = [logs[shares <= stats.CLEAN], logs[shares > stats.CLEAN]]
        if min(part.size for part in parts) < stats.MIN_ROUNDS:
            return None
        quiet, noisy = (stats.nested(part, [part.size], np.ones(part.size)) for part in parts)
        if abs(quiet.centre - noisy.centre) <= math.hypot(quiet.half, noisy.half):
            return None
        count = stats.MIN_ROUNDS
        return stats.judged(quiet.centre, quiet.half, count), stats.judged(noisy.centre, noisy.half, count)


def pooled(before: Pairing, now: Pairing) -> Pairing:
    """A pairing with the rounds of an earlier one before its own."""
    shares = [stats.shares(part.disturbed, len(part.own_samples_per_s)) for part in (before, now)]
    return msgspec.structs.replace(
        now,
        own_samples_per_s=[*before.own_samples_per_s, *now.own_samples_per_s],
        other_samples_per_s=[*before.other_samples_per_s, *now.other_samples_per_s],
        disturbed=list(itertools.chain(*shares)),
        incarnations=[*before.sizes, *now.sizes],
        interleaved=before.interleaved and now.interleaved,
    )


def aa_pairs(pairing: Pairing) -> list[AAPair]:
    """How much two equal sides differed, in each incarnation that other programs left undisturbed."""
    pairs = []
    start = 0
    for size in pairing.sizes:
        part = slice(start, start + size)
        start += size
        own = np.array(pairing.own_samples_per_s[part])
        other = np.array(pairing.other_samples_per_s[part])
        if size >= stats.MIN_ROUNDS and max(pairing.disturbed[part], default=0.0) <= stats.CLEAN:
            pairs.append(stats.aa_pair(own, other))
    return pairs
