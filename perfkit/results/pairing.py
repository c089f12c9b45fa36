"""The rounds of two runs beside each other, and what is derived from them: ratio, interval, verdict."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from perfkit.results import stats
from perfkit.results.stats import Ratio, Values

Role = Literal["previous", "baseline"]
"""What a run is compared with: the stage before it, or the first one."""
Flags = np.ndarray[Any, np.dtype[np.bool_]]
DISTURBED = 0.05
"""A block during which others took more than this share of the cores is disturbed (metrics §1)."""


def counting(shares: Sequence[float], count: int) -> Flags:
    """Which of `count` rounds count: those that others did not disturb, or all where too few are left.

    `shares` of the cores were taken by others, in each round; empty where it was not measured.
    """
    clean: Flags = np.array(shares if len(shares) == count else [0.0] * count) <= DISTURBED
    # Half of fewer rounds will do: they give no verdict anyway.
    needed = stats.MIN_ROUNDS if count >= stats.MIN_ROUNDS else count / 2
    return clean if clean.sum() >= needed else np.ones(count, bool)


def is_disturbed(shares: Sequence[float], count: int) -> bool:
    """Whether too few of `count` rounds were undisturbed, so that all of them count."""
    return len(shares) == count and any(np.array(shares)[counting(shares, count)] > DISTURBED)


class Rounds(msgspec.Struct, frozen=True, omit_defaults=True):
    """samples/s of two runs, block by block, in one pair of processes."""

    own_samples_per_s: list[float]
    other_samples_per_s: list[float]
    disturbed: list[float] = []
    """Share of the cores that others took in each round; empty where it was not measured."""

    @property
    def rates(self) -> tuple[Values, Values]:
        """Both as arrays, this run's first, in the rounds that count."""
        own, other = np.array(self.own_samples_per_s), np.array(self.other_samples_per_s)
        counts = counting(self.disturbed, own.size)
        return (own[counts], other[counts]) if own.size == other.size else (own, other)

    @property
    def is_disturbed(self) -> bool:
        """Whether too few rounds were undisturbed, so that all of them count."""
        return is_disturbed(self.disturbed, len(self.own_samples_per_s))


class Pairing(Rounds, frozen=True, kw_only=True, omit_defaults=True):
    """The blocks of two runs, round by round: what a comparison is computed from."""

    against: str
    """Id of the other run."""
    role: Role
    interleaved: bool
    """Whether both were measured in the same rounds; if not, the rates may be relative to the baseline's."""
    noise: float | None = None
    """The machine's A/A noise then: smaller effects are not called effects; None if unknown."""
    assumed: bool = False
    """Whether that noise was measured on another machine."""
    band: float | None = None
    """Of simulated runs: the model's error of the ratio to expect, as a fraction; None for measured ones."""
    further_pairs: list[Rounds] = []
    """The same two recipes, measured again, each time in a pair of fresh processes."""

    @property
    def pairs(self) -> list[Rounds]:
        """The rounds of every pair of processes."""
        return [self, *self.further_pairs]

    @property
    def ratio(self) -> Ratio:
        """How many times faster this run is than the other, with its interval and verdict."""
        pairs = [pair for pair in self.pairs if not pair.is_disturbed]
        if len(pairs) < stats.MIN_ROUNDS:
            pairs = self.pairs
        rates = [pair.rates for pair in pairs]
        if self.further_pairs:
            ratio = stats.ratio_over_pairs(rates, noise=self.noise)
        else:
            ratio = stats.ratio(*rates[0], paired=self.interleaved, noise=self.noise)
        if any(pair.is_disturbed for pair in pairs):
            return msgspec.structs.replace(ratio, verdict="disturbed")
        return ratio if self.band is None else stats.predicted(ratio, self.band)
