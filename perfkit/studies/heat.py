"""A heat: trainings that are alive together, measured in the same rounds."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from perfkit import machine
from perfkit.errors import Cancelled, PerfkitError
from perfkit.ladder.stages import AGAIN, Stage
from perfkit.process.child import Child
from perfkit.results import noise, stats
from perfkit.results.pairing import DISTURBED
from perfkit.results.run import Communication, Run
from perfkit.studies.record import Measurement, Round, RunBuilder
from perfkit.studies.setup import Setup
from perfkit.worker.messages import Block, Peak

if TYPE_CHECKING:
    from perfkit.studies.engine import Schedule, Trial

_HOPELESS = 3
"""After this many disturbed rounds on end, no block is measured twice."""
_ROOM = 1.5
"""A further training needs as much memory as the largest one so far, and some more for its batches."""


@dataclass(eq=False)
class Live:
    """A trial that has been started, or could not be."""

    trial: Trial
    builder: RunBuilder
    child: Child | None = None
    measurement: Measurement | None = None
    run: Run | None = None
    """What became of it: at the end of its heat, or as soon as it cannot be measured."""

    @property
    def stage(self) -> Stage:
        """The trial's."""
        return self.trial.stage

    @property
    def id(self) -> str:
        """Of its run."""
        return self.builder.id

    @property
    def is_measurable(self) -> bool:
        """Whether it was started, and has not failed since."""
        return self.measurement is not None and self.run is None

    @property
    def measured(self) -> Measurement:
        """What it has measured so far."""
        assert self.measurement
        return self.measurement

    def stop(self, setup: Setup) -> None:
        """Ends its process."""
        if self.child:
            setup.stop(self.child)
        self.child = None

    def exchange(self, other: Live) -> None:
        """Each takes the other's process; both train the same."""
        self.child, other.child = other.child, self.child
        self.measurement, other.measurement = other.measurement, self.measurement
        self.measured.id, other.measured.id = self.id, other.id


class Heat:
    """Measures trainings that are alive and warm.

    Args:
        setup: whose children they are.
        schedule: how long.
        members: in the order of the trials; the baseline first.
        order: shuffles the members of each round.
        until: `time.monotonic()` after which no further round starts, but for the least number.
    """

    def __init__(
        self, setup: Setup, schedule: Schedule, members: Sequence[Live], order: random.Random,
        until: float = math.inf,
    ) -> None:  # fmt: skip
        self._setup, self._schedule, self._random = setup, schedule, order
        self._members = list(members)
        self._rounds: list[Round] = []
        self._until = until
        self._taken: float | None = None
        """Share of the cores that others took during the last block."""
        self._done = 0.0

    def is_crowded(self) -> bool:
        """Whether one more training may not fit into this machine's memory."""
        children = [live.child for live in self._members if live.child]
        sizes = [sum(map(machine.resident_bytes, child.pids)) for child in children]
        return bool(sizes) and machine.free_memory_bytes() < _ROOM * max(sizes)

    def measure(self) -> None:
        """Measures rounds until they are precise enough, or the time is spent.

        A trial that fails takes no further part, and has a run that says so.

        Raises:
            Cancelled: a person stopped it; the rounds that are complete count.
        """
        started = time.monotonic()
        compared = max(1, len(self._members) - 1)
        until = min(self._until, started + self._schedule.budget_s * compared)
        uuid = self._setup.description.facts.uuid
        others = machine.OtherPrograms()
        with machine.sample_utilization(uuid) as utilization:
            while self._members and (share := self._share(started, until)) is not None:
                last = self._members[-1].stage.title
                names = f", {len(self._members)} runs together" if compared > 1 else f" of {last}"
                self._setup.progress.rounds(f"round {len(self._rounds) + 1}{names}", share)
                self._rounds.append(self._round(utilization, repeats=time.monotonic() < until))
                others.look()
        for live in list(self._members):
            self._ask_the_rest(live)
        if any(round.disturbed > DISTURBED for round in self._rounds):
            culprit = others.busiest(self._pids())
            for live in self._members:
                live.builder.culprit = culprit

    def _share(self, started: float, until: float) -> float | None:
        """How much of the measuring is done, roughly; None if all of it is."""
        least, count, now = self._schedule.preset.rounds, len(self._rounds), time.monotonic()
        clean = [round for round in self._rounds if round.disturbed <= DISTURBED]
        needed = max(least, self._needed(clean))
        if count >= least and (now > until or len(clean) >= needed):
            return None
        spent = (now - started) / max(until - started, 1e-9) if now < until else count / least
        self._done = max(self._done, min(0.99, max(len(clean) / needed, spent)))
        return self._done

    def _needed(self, rounds: Sequence[Round]) -> float:
        """After how many rounds every ratio, to the trial before and to the baseline, is precise enough."""
        schedule, precision = self._schedule, self._schedule.precision
        again = self._members[-1].stage.name == AGAIN
        stages = self._members[:-1] if again else self._members
        if precision is None or len(stages) < 2:
            return 0
        rates = np.array(
            [[round.blocks[live.id].samples_per_s for live in self._members] for round in rounds]
        )
        logs = np.log(rates.reshape(len(rounds), len(self._members)))
        if schedule.adds_noise:
            known = [stats.aa_pair(rates[:, -1], rates[:, 0])] if again and len(rounds) > 1 else []
            precision = stats.rounds_part(precision, noise.load(self._setup.plan.device, known))
        equal = logs[:, -1:] - logs[:, :1] if again else None
        logs = logs[:, : len(stages)]
        ratios = np.hstack([logs[:, 1:] - logs[:, :-1], logs[:, 2:] - logs[:, :1]])
        return stats.rounds_needed(ratios, precision, schedule.part, equal)

    def _round(self, utilization: list[float], repeats: bool) -> Round:
        """One block of every member, in random order; those that are disturbed once more."""
        order, started = list(self._members), time.monotonic()
        self._random.shuffle(order)
        hopeless = [round.disturbed > DISTURBED for round in self._rounds[-_HOPELESS:]] == [True] * _HOPELESS
        blocks: dict[str, Block] = {}
        ceilings: dict[str, Block] = {}
        repeated: dict[str, Block] = {}
        disturbed = 0.0
        for live in order:
            start = len(utilization)  # what was sampled before is of the others' blocks
            self._setup.progress.block(live.stage.title, self._taken, utilization)
            try:
                block, ceiling, share = self._blocks(live)
                self._taken = share
                if share > DISTURBED and repeats and not hopeless:
                    repeated[live.id] = block
                    block, ceiling, share = self._blocks(live)
            except Cancelled:
                raise
            except PerfkitError as problem:
                self._drop(live, problem)
                continue
            live.measured.gpu_utilization += utilization[start:]
            disturbed, blocks[live.id] = max(disturbed, share), block
            if ceiling:
                ceilings[live.id] = ceiling
        round = Round(blocks, ceilings, repeated, disturbed, time.monotonic() - started)
        for live in self._members:
            live.measured.rounds.append(round)
        return round

    def _blocks(self, live: Live) -> tuple[Block, Block | None, float]:
        """A block, the ceiling in the first rounds, and the share of cores or GPU that others took."""
        preset, child = self._schedule.preset, live.child
        assert child
        if self._setup.plan.timeout_s:
            child.deadline = time.monotonic() + self._setup.plan.timeout_s
        pids = self._pids()
        since, before = time.time(), machine.cpu_times(pids)
        block = child.ask(
            "block", Block, samples=preset.block_samples, seconds=preset.block_s, queues=preset.queues
        )
        wants_ceiling = (
            self._schedule.ceiling and self._setup.holds_batches and len(self._rounds) < preset.rounds
        )
        ceiling = child.ask("ceiling", Block, samples=preset.block_samples) if wants_ceiling else None
        share = machine.taken_share(before, machine.cpu_times(pids))
        if uuid := self._setup.description.facts.uuid:
            share = max(share, machine.taken_gpu_share(uuid, since, machine.members(pids)))
        return block, ceiling, share

    def _pids(self) -> set[int]:
        return {pid for live in self._members if live.child for pid in live.child.pids}

    def _ask_the_rest(self, live: Live) -> None:
        """What is measured once, after the rounds."""
        assert live.child
        try:
            live.measured.peak = live.child.ask("peak", Peak)
            if live.stage.recipe.ranks > 1:
                samples = self._schedule.preset.block_samples
                live.measured.communication = live.child.ask("communication", Communication, samples=samples)
        except Cancelled:
            raise
        except PerfkitError as problem:
            self._drop(live, problem)

    def _drop(self, live: Live, problem: PerfkitError) -> None:
        live.run = live.builder.unmeasured("failed", str(problem))
        live.stop(self._setup)
        self._members.remove(live)
