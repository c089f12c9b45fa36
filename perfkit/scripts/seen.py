"""What watching a script has shown, and what follows from it by arithmetic."""

from __future__ import annotations

import re
from dataclasses import dataclass

from perfkit.recipe import Recipe
from perfkit.rules import Target
from perfkit.trace import Analysis
from perfkit.worker.messages import Block
from perfkit.worker.reports import SyncReport


@dataclass(frozen=True)
class Seen:
    """What watching a script has shown."""

    own: Recipe
    """The switches as the script sets them."""
    target: Target
    """Where it runs, with what cannot be set from outside."""
    block: Block
    """Plain steps, as the script is."""
    cores: int
    """Usable ones."""
    ceiling: Block | None = None
    """Steps on a held batch."""
    analysis: Analysis | None = None
    """Of a profile of some steps."""
    syncs: SyncReport | None = None
    restarts_s: float = 0.0
    """Seconds that the first steps of epochs took beyond others, over all steps that were seen …"""
    whole_s: float = 0.0
    """… in this many seconds."""
    optimizer_s: float | None = None
    """Of the block's seconds, those in optimizers; None where that was not timed."""
    system_s: float = 0.0
    """Of `whole_s`, processor time of the system …"""
    page_faults: int = 0
    """… and pages of memory that it gave the script in it."""
    in_16_bits: float | None = None
    """How many times as fast a step on a held batch is under autocast to bfloat16; None if not tried."""

    @property
    def waits(self) -> float:
        """The share of a step that is waiting for data."""
        return sum(self.block.data_wait_s) / max(self.block.seconds, 1e-12)

    @property
    def step_s(self) -> float:
        """A step, as the script is."""
        return self.block.seconds / max(1, len(self.block.step_s))

    @property
    def held_s(self) -> float | None:
        """A step on a held batch; None if that was not measured.

        Its blocks alternate with those of the steps, and others may disturb only its own: it takes no longer
        than a step, or, on a CPU, than the part of a step that is not waiting.
        """
        if self.ceiling is None:
            return None
        samples = self.block.samples / max(1, len(self.block.step_s))
        most = self.step_s * (max(0.0, 1 - self.waits) if self.target.device == "cpu" else 1)
        return min(samples / self.ceiling.samples_per_s, most)

    def share(self, names: re.Pattern[str]) -> float | None:
        """The share of the steps that these operators take by themselves; None without a sound profile."""
        analysis = self.analysis
        if analysis is None or not analysis.steps or analysis.mean_us["other"] is None:
            return None
        own = sum(
            (row.device_self_us if analysis.has_accelerator else row.host_self_us) or 0.0
            for row in analysis.operators
            if names.match(row.name)
        )
        return min(1.0, own / sum(step.duration_us for step in analysis.steps))
