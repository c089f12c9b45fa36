"""What watching a script has shown, as typed data."""

from typing import Any

import msgspec

from perfkit.results.run import Communication
from perfkit.scripts.messages import Observation, ScriptFacts
from perfkit.scripts.suggest import Suggestion
from perfkit.trace.diagnosis import Bottleneck
from perfkit.worker.messages import Block, Peak, SyncReport


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """What watching a script has shown; a part that was not measured is None or empty."""

    command: str
    """The command as one types it."""
    script: ScriptFacts
    own: dict[str, Any]
    """All switches as the script has them."""
    startup_s: float
    """From the start of the process to its first batch."""
    seen: Observation
    ceiling: Block | None = None
    """Steps on a held batch."""
    peak: Peak = Peak(None, None, 0)
    syncs: SyncReport | None = None
    trace: str | None = None
    """The file with the profiled steps."""
    bottlenecks: list[Bottleneck] = []
    suggestions: list[Suggestion] = []
    ranks: list[Block] = []
    """The plain steps of each rank."""
    communication: Communication | None = None
    warnings: list[str] = []

    @property
    def step_s(self) -> float:
        """A plain step."""
        return self.seen.block.seconds / max(1, len(self.seen.block.step_s))

    @property
    def waiting(self) -> float | None:
        """The share of the plain steps that is waiting for data; None without a loader."""
        return sum(self.seen.block.data_wait_s) / self.seen.block.seconds if self.script.loader else None

    @property
    def tokens_per_s(self) -> float | None:
        """None where nothing that was seen is text."""
        return self.seen.tokens / self.seen.block.seconds if self.seen.tokens else None
