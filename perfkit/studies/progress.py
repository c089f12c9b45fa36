"""How a study is followed and stopped."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from perfkit.results.run import Run


@dataclass(frozen=True)
class Update:
    """What a study is doing now."""

    stage: str
    phase: str
    fraction: float
    """Part of the whole study that is done (0 to 1)."""
    run: Run | None = None
    """The run that has just ended, whatever its status."""

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
        self.title = ""
        self._range = (0.0, 1.0)
        self._done = 0.0

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

    def phase(self, phase: str) -> None:
        """A process is in a phase."""
        self.tell(Update(self.title, phase, self._done))

    def share(self, phase: str, fraction: float) -> None:
        """The work is in a phase, and so much of this part is done."""
        self.reach(fraction)
        self.phase(phase)

    def finish(self, run: Run) -> None:
        """A run has ended."""
        self.tell(Update(run.title, run.status, self._done, run))
