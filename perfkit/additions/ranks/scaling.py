"""How training scales with its ranks: what is lost to what, and what more ranks could give at most."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

import msgspec
import numpy as np

from perfkit.additions.ranks.lateness import EXCHANGE
from perfkit.additions.ranks.launch import RanksLaunch, launch_of
from perfkit.additions.ranks.messages import LIMIT, PARTS
from perfkit.additions.ranks.watching import RanksReport, alone, watch_launch
from perfkit.additions.scripts.study import OF_SCRIPTS
from perfkit.additions.scripts.watched import Launch
from perfkit.errors import InvalidValue, RunFailed
from perfkit.machine import cores
from perfkit.results import Estimate, stats
from perfkit.show import units
from perfkit.studies.sources import Progress

Regime = Literal["strong", "weak", "neither"]  # what is kept: the global batch, that of a rank, or neither
BUDGET_S = 30.0  # seconds for which each number of ranks is watched
LAUNCHES = 3  # in so many launches, which take turns
LOSSES = ("exposed communication", "waiting for slower ranks", "loading", "slower computing")


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """So many ranks: samples/s of all together, and what a mean step of a mean rank consists of."""

    ranks: int
    samples_per_s: Estimate
    batch: float  # samples of a step on one rank
    parts: dict[str, float]  # seconds; also `unlike` (waits for others), `exposed`, `hidden` communication
    gradient_bytes: int
    threads: int
    workers: int
    device: str
    taken: float  # the share of the cores that other programs took

    @property
    def step_s(self) -> float:
        return sum(self.parts.values()) - self.parts["hidden"]

    def efficiency(self, base: "ScalingPoint") -> float:
        """The rate of a rank here / that of a rank in `base`; 1 is perfect."""
        return self.samples_per_s.value / self.ranks / (base.samples_per_s.value / base.ranks)

    def losses(self, base: "ScalingPoint") -> dict[str, float]:
        """By cause, the share of the perfect rate that is lost; together they are 1 - efficiency."""
        shares = [  # of what one sample takes
            (self.parts[part] / self.batch - base.parts[part] / base.batch) * self.batch / self.step_s
            for part in ("exposed", "unlike", "waiting")
        ]
        shares.append(1 - self.efficiency(base) - sum(shares))  # what these parts do not explain is computing
        return dict(zip(LOSSES, shares, strict=True))


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """What training with several numbers of ranks has shown."""

    command: str
    cores: int
    measured: list[ScalingPoint]  # the fewest ranks first
    seen: Regime  # how the script's batches grow
    regime: Regime  # how they grow where it is predicted
    predicted: list[ScalingPoint]
    bytes_per_s: float  # of the exchange of gradients, in a ring
    failures: dict[int, str] = {}  # by the number of ranks


def counts_of(text: str) -> list[int]:
    """The numbers in `1,2,4`, the fewest ranks first; `InvalidValue` unless they are two or more."""
    words = [word.strip() for word in text.split(",")]
    counts = sorted({int(word) for word in words if word.isdecimal()})
    if len(counts) < 2 or counts[0] < 1 or not all(word.isdecimal() for word in words):
        raise InvalidValue(f"--ranks was given '{text}'", "Give two or more numbers from 1 on, such as 1,2,4")
    return counts


def scale(
    script: Launch,
    counts: Sequence[int],
    regime: Regime | None = None,  # what is predicted; as the script does it if None
    budget_s: float = BUDGET_S,
    progress: Progress | None = None,
) -> Scaling:
    """Trains a script with each of these numbers of ranks, in turn; `RunFailed` where only one trains."""
    seen, failures = _launched(script, counts, budget_s, progress or Progress())
    measured = [_ranks(count, launches) for count, launches in seen.items() if launches]
    last = measured[-1]
    found = _regime(measured)
    exchange_s = last.parts["exposed"] + last.parts["hidden"]
    return Scaling(
        command=torchrun(script, last.ranks).describe(),
        cores=cores.usable_cores(),
        measured=measured,
        seen=found,
        regime=regime or found,
        predicted=[at_most(last, times * last.ranks, regime or found) for times in LIMIT.further],
        bytes_per_s=ring(last.ranks) * last.gradient_bytes / exchange_s if exchange_s else 0.0,
        failures=failures,
    )


def _launched(
    script: Launch, counts: Sequence[int], budget_s: float, progress: Progress
) -> tuple[dict[int, list[RanksReport]], dict[int, str]]:
    """What launches with each number of ranks have shown, and why some of them failed, which ends theirs."""
    seen = {count: list[RanksReport]() for count in counts}
    failures = dict[int, str]()
    with alone(torchrun(script, counts[-1]), progress):
        for number, count in enumerate([*counts] * LAUNCHES):
            progress.reach(number / (LAUNCHES * len(counts)), f"ranks: {count}")
            if count in failures:
                continue
            try:
                seen[count].append(_watched(torchrun(script, count), count, budget_s, progress))
            except RunFailed as problem:
                failures[count] = problem.what
                if before := len(seen[count]):
                    known = f"as {units.plural(before, 'launch', 'launches')} showed before one failed"
                    failures[count] = f"{known}: {problem.what}"
                left = [each for each in counts if seen[each] or each not in failures]
                if len(left) < 2:
                    problem.what = "; ".join(failures.values())
                    raise
    return seen, failures


def torchrun(script: Launch, ranks: int) -> RanksLaunch:
    """The script, started by torchrun with so many ranks."""
    how = ["--standalone", "--nproc-per-node", str(ranks), *(["--module"] if script.module else [])]
    return launch_of(["torchrun", *how, script.program, *script.arguments])


def _watched(launch: RanksLaunch, count: int, budget_s: float, progress: Progress) -> RanksReport:
    seen = watch_launch(launch, progress, budget_s / LAUNCHES)
    if seen.ranks != count:
        what = f"torchrun started {count} ranks, and the script's group has {seen.ranks}"
        raise RunFailed(what, "Let the script take RANK and WORLD_SIZE from torchrun, and start none itself")
    if not seen.lateness:
        what = f"only {seen.steps} steps were seen in {budget_s / LAUNCHES:.0f} s (raise --budget)"
        raise RunFailed(what, "Let the script train for longer, or watch it for longer: --budget 120")
    return seen


def _ranks(count: int, launches: Sequence[RanksReport]) -> ScalingPoint:
    spent = [seen.lateness.spent for seen in launches if seen.lateness]
    rates = [sum(each.samples_per_s for each in ranks) for ranks in spent]
    counts = stats.weights([seen.taken for seen in launches], len(launches))
    mean = stats.nested(np.log(rates), [1] * len(launches), counts, OF_SCRIPTS)
    rate, half = math.exp(mean.centre), math.exp(mean.half)
    every = [each for ranks in spent for each in ranks]
    first = launches[0].states[0]
    parts = {PARTS[at]: fmean(each.parts[at] for each in every) for at in range(EXCHANGE)}
    samples = [each.samples_per_s * (sum(each.parts) + each.for_others + each.exposed) for each in every]
    parts["unlike"] = fmean(each.for_others for each in every)
    parts["exposed"] = fmean(each.exposed for each in every)
    parts["hidden"] = fmean(each.hidden for each in every)
    return ScalingPoint(
        ranks=count,
        samples_per_s=Estimate(rate, rate / half, rate * half),
        batch=round(fmean(samples), 1),
        parts=parts,
        gradient_bytes=sum(ddp.bytes for ddp in first.ddps),
        threads=first.threads,
        workers=first.loader.workers if first.loader else 0,
        device=first.device,
        taken=fmean(seen.taken for seen in launches),
    )


def _regime(measured: Sequence[ScalingPoint]) -> Regime:
    base = measured[0]
    if all(abs(each.batch / base.batch - 1) < LIMIT.alike for each in measured):
        return "weak"
    if all(abs(each.batch * each.ranks / (base.batch * base.ranks) - 1) < LIMIT.alike for each in measured):
        return "strong"
    return "neither"


def ring(ranks: int) -> float:
    """How many times each rank sends the bytes of an all-reduce in a ring."""
    return 2 * (ranks - 1) / ranks


def at_most(last: ScalingPoint, ranks: int, regime: Regime) -> ScalingPoint:
    """What more ranks could give at most, by what the most ranks that were measured have shown."""
    batch = last.batch * last.ranks / ranks if regime == "strong" else last.batch
    parts = {name: seconds * batch / last.batch for name, seconds in last.parts.items()}
    longer = ring(ranks) / ring(last.ranks)  # the exchange, with the bandwidth that was measured
    parts["optimizer"] = last.parts["optimizer"]  # it does not shrink with the batch (Amdahl)
    parts["unlike"] = 0.0  # no rank is late
    parts["hidden"] = min(last.parts["hidden"] * longer, parts["backward"])
    parts["exposed"] = (last.parts["exposed"] + last.parts["hidden"]) * longer - parts["hidden"]
    found = msgspec.structs.replace(last, ranks=ranks, batch=batch, parts=parts)
    rate = ranks * batch / found.step_s
    return msgspec.structs.replace(found, samples_per_s=Estimate(rate, rate, rate))
