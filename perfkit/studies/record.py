"""From what a child said to a `Run`: the record of a stage, and its own doubts about itself."""

from __future__ import annotations

import datetime
import secrets
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec
import numpy as np

from perfkit import machine
from perfkit.ladder.stages import Stage
from perfkit.process.child import Child
from perfkit.process.ranks import RankGroup
from perfkit.results import stats
from perfkit.results.run import Communication, Pairing, Raw, Run
from perfkit.worker.messages import Block, Description, Peak, Trained

Role = Literal["previous", "baseline"]


@dataclass
class Side:
    """What a stage has measured, and its child while that lives."""

    run_id: str
    child: Child | RankGroup | None
    rates: list[float]

    def stop(self) -> None:
        """Ends the child; what it measured stays."""
        if self.child:
            self.child.stop()
        self.child = None


@dataclass
class Measured:
    """What one stage has given so far."""

    ready: Trained
    blocks: list[Block] = field(default_factory=list)
    ceiling: list[float] = field(default_factory=list)
    rounds: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Other run's id → (own, other) samples/s of each round in which both were measured."""
    peak: Peak = field(default_factory=lambda: Peak(None, None, 0))
    communication: Communication | None = None
    gpu_utilization: list[float] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """samples/s of each block."""
        return [block.samples_per_s for block in self.blocks]


def pairing(side: Side, role: Role, measured: Measured, noise: float | None = None) -> Pairing:
    """The rounds of both sides; those of a side that has ended are what it measured in its own time."""
    together = measured.rounds.get(side.run_id, [])
    own = [own for own, _ in together] or measured.rates
    other = [other for _, other in together] or side.rates
    return Pairing(side.run_id, role, bool(together), own, other, noise)


class Blank:
    """Makes the run of a stage: what is known before it starts, plus what came of it."""

    def __init__(
        self, session: str, stage: Stage, described: Description, preset: str, device: str, seed: int
    ) -> None:
        now = datetime.datetime.now(datetime.UTC)
        self.run_id = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"
        self._before = machine.read_conditions()
        self._known: dict[str, Any] = {
            "id": self.run_id,
            "session": session,
            "created": now.isoformat(timespec="seconds"),
            "stage": stage.name,
            "title": stage.title,
            "workload": described.reference,
            "options": described.options,
            "preset": preset,
            "device": device,
            "seed": seed,
            "recipe": stage.recipe.to_dict(),
        }
        self._facts = {f"not applied: {name}": why for name, why in (stage.not_applied or {}).items()}
        self._torch = {name: str(value) for name, value in msgspec.to_builtins(described.facts).items()}

    def __call__(self, **results: Any) -> Run:
        """The run."""
        facts = self._facts | results.pop("facts", {})
        conditions = {"before": self._before, "after": machine.read_conditions()}
        facts_of_machine = {**machine.facts(), "device": self._torch, "conditions": conditions}
        return Run(**{**self._known, **results}, machine=facts_of_machine, facts=facts)


def results(measured: Measured, pairings: list[Pairing], device: str) -> dict[str, Any]:
    """The fields of a `Run` that a measured stage fills in."""
    ready, blocks = measured.ready, measured.blocks
    warm = [ready.first, ready.warm]
    step_s = [value for part in [*warm, *blocks] for value in part.step_s]
    data_wait_s = [value for part in [*warm, *blocks] for value in part.data_wait_s]
    accelerator = not device.startswith("cpu")
    crossing = (0 if ready.data_on_device else ready.batch_bytes_per_sample) if accelerator else None
    steady = float(np.median([value for block in blocks for value in block.step_s]))
    facts = ready.facts | ({"weights": ready.weights} if ready.weights else {})
    if ready.malloc and not accelerator and sys.platform == "linux":
        facts["allocator"] = f"freed memory is kept (GLIBC_TUNABLES={ready.malloc})"
    if ready.compiled:
        facts["compile cache"] = "warm" if ready.compile_counters.cache_hits else "cold"
    return {
        "recipe": ready.recipe,
        "raw": Raw(
            step_s=step_s,
            data_wait_s=data_wait_s,
            device_step_s=[value for block in blocks for value in block.device_step_s],
            warmup_steps=sum(len(part.step_s) for part in warm),
            block_samples_per_s=measured.rates,
            ceiling_samples_per_s=measured.ceiling,
            gpu_utilization_nvml=measured.gpu_utilization,
        ),
        "samples_per_step": ready.samples_per_step,
        "mechanism": ready.mechanisms,
        "pairings": pairings,
        "losses": ready.losses,
        "communication": measured.communication,
        "startup_s": ready.startup_s,
        "compile_s": max(0.0, ready.first.step_s[0] - steady) if ready.compiled else None,
        "peak_memory_bytes": measured.peak.allocated,
        "peak_reserved_bytes": measured.peak.reserved,
        "batch_bytes_per_sample": ready.batch_bytes_per_sample,
        "h2d_bytes_per_sample": crossing,
        "facts": facts,
    }


def judged(run: Run, measured: Measured) -> Run:
    """The run with its own doubts written down, each with what to do."""
    doubts = []
    rates = np.array(run.raw.block_samples_per_s)
    if stats.relative_iqr(rates) > 0.1:
        doubts.append("blocks differ by more than 10%: close other programs, or use a longer preset")
    if len(rates) < stats.MIN_ROUNDS:
        doubts.append(
            f"only {len(rates)} rounds: a try, too few for a verdict; use the preset quick or paper"
        )
    if stats.still_warming(rates):
        doubts.append(
            "the first block is slower than the later ones: warm-up was not over; use a longer preset"
        )
    if not all(pairing.interleaved for pairing in run.pairings):
        doubts.append("compared one after the other, not in turn: the sides did not fit in memory together")
    if measured.peak.recompiles:
        doubts.append("the model was compiled again while it was measured: keep its input shapes the same")
    for when in ("before", "after"):
        doubts += machine.quality_warnings(
            run.machine["conditions"][when], own_processes=3, gpu=run.machine["device"].get("uuid")
        )
    return msgspec.structs.replace(run, warnings=list(dict.fromkeys(doubts)))
