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

Regime = Literal["strong", "weak", "neither"]  # equal: the global batch, the batch of a rank, or neither
BUDGET_S = 30.0  # of watching each number of ranks
LAUNCHES = 3  # of each number of ranks, in turn
LOSSES = ("exposed communication", "waiting for slower ranks", "loading", "slower computing")


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One number of ranks: samples/s of all together, and the parts of a mean step of a mean rank."""

    ranks: int
    samples_per_s: Estimate
    batch: float  # samples in a step of one rank
    parts: dict[str, float]  # seconds; also `unlike` (waits for others), `exposed` and `hidden` communication
    gradient_bytes: int
    threads: int
    workers: int
    device: str
    taken: float  # the share of the cores that other programs took

    @property
    def step_s(self) -> float:
        return sum(self.parts.values()) - self.parts["hidden"]

    def efficiency(self, base: "ScalingPoint") -> float:
        """The rate of a rank here / the rate of a rank in `base`; 1 is perfect."""
        return self.samples_per_s.value / self.ranks / (base.samples_per_s.value / base.ranks)

    def losses(self, base: "ScalingPoint") -> dict[str, float]:
        """The shares of the perfect rate that are lost, by cause; they sum to 1 - efficiency."""
        shares = [  # of the time that a sample takes
            (self.parts[part] / self.batch - base.parts[part] / base.batch) * self.batch / self.step_s
            for part in ("exposed", "unlike", "waiting")
        ]
        shares.append(1 - self.efficiency(base) - sum(shares))  # the rest is slower computing
        return dict(zip(LOSSES, shares, strict=True))


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """What training with several numbers of ranks has shown."""

    command: str
    cores: int
    measured: list[ScalingPoint]  # the fewest ranks first
    seen: Regime  # how the script's batches grow
    regime: Regime  # how they grow in the prediction
    predicted: list[ScalingPoint]
    bytes_per_s: float  # of gradients that are exchanged, in a ring
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
    regime: Regime | None = None,  # of the prediction; None: as in the script
    budget_s: float = BUDGET_S,
    progress: Progress | None = None,
) -> Scaling:
    """Trains a script with each of these numbers of ranks, in turn; `RunFailed` if only one trains."""
    reports, failures = _launched(script, counts, budget_s, progress or Progress())
    measured = [_point(count, launches) for count, launches in reports.items() if launches]
    last = measured[-1]
    seen = _regime(measured)
    exchange_s = last.parts["exposed"] + last.parts["hidden"]
    return Scaling(
        command=torchrun(script, last.ranks).describe(),
        cores=cores.usable_cores(),
        measured=measured,
        seen=seen,
        regime=regime or seen,
        predicted=[at_most(last, times * last.ranks, regime or seen) for times in LIMIT.further],
        bytes_per_s=ring(last.ranks) * last.gradient_bytes / exchange_s if exchange_s else 0.0,
        failures=failures,
    )


def _launched(
    script: Launch, counts: Sequence[int], budget_s: float, progress: Progress
) -> tuple[dict[int, list[RanksReport]], dict[int, str]]:
    """The reports by number of ranks, and why numbers failed; one that has failed is not launched again."""
    reports = {count: list[RanksReport]() for count in counts}
    failures = dict[int, str]()
    with alone(torchrun(script, counts[-1]), progress):
        for number, count in enumerate([*counts] * LAUNCHES):
            progress.reach(number / (LAUNCHES * len(counts)), f"ranks: {count}")
            if count in failures:
                continue
            try:
                reports[count].append(_watched(torchrun(script, count), count, budget_s, progress))
            except RunFailed as problem:
                failures[count] = problem.what
                if before := len(reports[count]):
                    prefix = f"as {units.plural(before, 'launch', 'launches')} showed before one failed"
                    failures[count] = f"{prefix}: {problem.what}"
                left = [other for other in counts if reports[other] or other not in failures]
                if len(left) < 2:
                    problem.what = "; ".join(failures.values())
                    raise
    return reports, failures


def torchrun(script: Launch, ranks: int) -> RanksLaunch:
    """The launch of a script by torchrun with this number of ranks."""
    options = ["--standalone", "--nproc-per-node", str(ranks), *(["--module"] if script.module else [])]
    return launch_of(["torchrun", *options, script.program, *script.arguments])


def _watched(launch: RanksLaunch, count: int, budget_s: float, progress: Progress) -> RanksReport:
    report = watch_launch(launch, progress, budget_s / LAUNCHES)
    if report.ranks != count:
        what = f"torchrun started {count} ranks, and the script's group has {report.ranks}"
        raise RunFailed(what, "Let the script take RANK and WORLD_SIZE from torchrun, and start none itself")
    if not report.lateness:
        what = f"only {report.steps} steps were seen in {budget_s / LAUNCHES:.0f} s (raise --budget)"
        raise RunFailed(what, "Let the script train for longer, or watch it for longer: --budget 120")
    return report


def _point(count: int, launches: Sequence[RanksReport]) -> ScalingPoint:
    means_by_launch = [report.lateness.spent for report in launches if report.lateness]
    rates = [sum(mean.samples_per_s for mean in means) for means in means_by_launch]
    weights = stats.weights([report.taken for report in launches], len(launches))
    spread = stats.nested(np.log(rates), [1] * len(launches), weights, OF_SCRIPTS)
    rate, factor = math.exp(spread.centre), math.exp(spread.half)
    means = [mean for launch in means_by_launch for mean in launch]
    first = launches[0].states[0]
    parts = {PARTS[index]: fmean(mean.parts[index] for mean in means) for index in range(EXCHANGE)}
    samples = [mean.samples_per_s * (sum(mean.parts) + mean.for_others + mean.exposed) for mean in means]
    parts["unlike"] = fmean(mean.for_others for mean in means)
    parts["exposed"] = fmean(mean.exposed for mean in means)
    parts["hidden"] = fmean(mean.hidden for mean in means)
    return ScalingPoint(
        ranks=count,
        samples_per_s=Estimate(rate, rate / factor, rate * factor),
        batch=round(fmean(samples), 1),
        parts=parts,
        gradient_bytes=sum(ddp.bytes for ddp in first.ddps),
        threads=first.threads,
        workers=first.loader.workers if first.loader else 0,
        device=first.device,
        taken=fmean(report.taken for report in launches),
    )


def _regime(measured: Sequence[ScalingPoint]) -> Regime:
    base = measured[0]
    if all(abs(point.batch / base.batch - 1) < LIMIT.alike for point in measured):
        return "weak"
    total = base.batch * base.ranks
    if all(abs(point.batch * point.ranks / total - 1) < LIMIT.alike for point in measured):
        return "strong"
    return "neither"


def ring(ranks: int) -> float:
    """How many times each rank sends the bytes of a tensor in a ring all-reduce."""
    return 2 * (ranks - 1) / ranks


def at_most(last: ScalingPoint, ranks: int, regime: Regime) -> ScalingPoint:
    """The upper limit for more ranks, extrapolated from the largest number that was measured."""
    batch = last.batch * last.ranks / ranks if regime == "strong" else last.batch
    parts = {name: seconds * batch / last.batch for name, seconds in last.parts.items()}
    longer = ring(ranks) / ring(last.ranks)  # how much longer the exchange takes with the same bandwidth
    parts["optimizer"] = last.parts["optimizer"]  # it does not shrink with the batch (Amdahl)
    parts["unlike"] = 0.0  # no rank is late
    parts["hidden"] = min(last.parts["hidden"] * longer, parts["backward"])
    parts["exposed"] = (last.parts["exposed"] + last.parts["hidden"]) * longer - parts["hidden"]
    point = msgspec.structs.replace(last, ranks=ranks, batch=batch, parts=parts)
    rate = ranks * batch / point.step_s
    return msgspec.structs.replace(point, samples_per_s=Estimate(rate, rate, rate))
