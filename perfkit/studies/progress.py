"""How a study is followed and stopped."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from perfkit.results.run import Run


@dataclass(frozen=True)
class Pace:
    """How fast the training under way is just now, and what else the machine does."""

    title: str
    """The title of the stage."""
    step_s: float
    samples_per_step: int
    others: float | None = None
    """Share of the cores that other programs took during the last block (0 to 1)."""
    gpu: float | None = None
    """The GPU's utilisation by NVML (0 to 1)."""


@dataclass(frozen=True)
class Update:
    """What a study is doing now."""

    stage: str
    phase: str
    fraction: float
    """Part of the whole study that is done (0 to 1)."""
    run: Run | None = None
    """The run that has just ended, whatever its status."""
    pace: Pace | None = None
    """The newest steps, if some have ended since the last update."""

    def describe(self) -> str:
        """One line for people; before the first stage there is only the phase."""
        return f"{self.stage}: {self.phase}".removeprefix(": ")


class Progress:
    """Follows a study and stops it.

    Args:
        tell: called often, from the thread that started the study.
        cancelled: set it from any thread to stop; what was measured is kept.
    """

    def __init__(
        self, tell: Callable[[Update], None] = lambda update: None, cancelled: threading.Event | None = None
    ) -> None:
        self.cancelled = cancelled or threading.Event()
        self.tell = tell
        self._range = (0.0, 1.0)
        self._done = 0.0
        self.title = ""
        self._pace: Pace | None = None
        self._measured = ""
        self._others: float | None = None
        self._gpu: Sequence[float] = ()

    @contextlib.contextmanager
    def part(self, number: int, total: int) -> Iterator[None]:
        """Maps the fractions of one of several equal parts, numbered from 0, to those of the whole study."""
        low, high = self._range
        size = (high - low) / max(1, total)
        self._range = (low + number * size, low + (number + 1) * size)
        try:
            yield
        finally:
            self._range = (low, high)

    def reach(self, fraction: float, title: str = "") -> None:
        """So much of this part is done; `title` is what comes next."""
        low, high = self._range
        self._done = max(self._done, low + (high - low) * min(1.0, fraction))
        self.title = title or self.title

    def phase(self, phase: str, fraction: float = 0.0) -> None:
        """A process is in a phase, of which `fraction` is done."""
        pace, self._pace = self._pace, None
        self.tell(Update(self.title, phase, self._done, pace=pace))

    def share(self, phase: str, fraction: float) -> None:
        """The work is in a phase, and so much of this part is done."""
        self.reach(fraction)
        self.phase(phase)

    def measure(self, title: str, others: float | None, gpu: Sequence[float]) -> None:
        """The next block belongs to this stage.

        Args:
            title: the title of the stage.
            others: share of the cores that other programs took in the block before.
            gpu: samples of the GPU's utilisation in percent; the list grows.
        """
        self._measured, self._others, self._gpu = title, others, gpu

    def steps(self, step_s: float, samples_per_step: int) -> None:
        """Steps have ended in the measured process."""
        gpu = self._gpu[-1] / 100 if self._gpu else None
        self._pace = Pace(self._measured, step_s, samples_per_step, self._others, gpu)

    def finish(self, run: Run) -> None:
        """A run has ended."""
        self.tell(Update(run.title, run.status, self._done, run))
