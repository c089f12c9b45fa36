"""What is known of the script of this process; the parts that watch it share it."""

import statistics
from collections.abc import Callable
from typing import Any

from perfkit.scripts.outputs import Outputs
from perfkit.scripts.sites import Sites
from perfkit.scripts.steps import Step, Steps

_STEPS_FOR_TYPICAL_SIZE = 12


class Script:
    """The script: its steps, the switches that are set from outside, and why others cannot be.

    Args:
        settings: fields of `messages.Settings`.
        outputs: what the script writes.
        on_steps: called with the steps that have ended.
    """

    def __init__(
        self, settings: dict[str, Any], outputs: Outputs, on_steps: Callable[[list[Step]], None]
    ) -> None:
        self.settings = settings
        self.outputs = outputs
        self.toggles: dict[str, Any] = dict(settings["toggles"])
        self.notes: list[str] = []
        self.refused: dict[str, str] = {}
        self.sites = Sites(settings["scratch"])
        self.steps = Steps(self._count)
        self.usual_samples = 0
        """Of a typical step of this rank."""
        self.usual_tokens = 0
        self.step_is = ""
        """What counts as a step, where it is not an optimizer's."""
        self.has_scaler = False
        """Whether the script has an enabled gradient scaler."""
        self.profiling = False
        """Whether the profiler records: forward and backward get their names then."""
        self._on_steps = on_steps
        self._seen: list[Step] = []

    def note(self, text: str) -> None:
        """Keeps a remark for the parent, once."""
        if text not in self.notes:
            self.notes.append(text)

    def refuse(self, switch: str, reason: str) -> None:
        """A switch cannot be set here; the first reason counts."""
        self.refused.setdefault(switch, reason)

    def wants(self, switch: str) -> Any:
        """The value that is to be set from outside; None if there is none, or it is refused."""
        return None if switch in self.refused else self.toggles.get(switch)

    def step_in_words(self) -> str:
        """What counts as a step."""
        names = [type(optimizer).__name__ for optimizer in self.steps.optimizers]
        if self.step_is or not names:
            return self.step_is
        kinds = ", ".join(
            f"{names.count(name)} {name}s" if names.count(name) > 1 else name for name in dict.fromkeys(names)
        )
        return f"a step of {kinds}"

    def _count(self, steps: list[Step]) -> None:
        if len(self._seen) < _STEPS_FOR_TYPICAL_SIZE:
            self._seen += steps
            self.usual_samples = statistics.median_low(step.samples for step in self._seen)
            self.usual_tokens = statistics.median_low(step.tokens for step in self._seen)
        self._on_steps(steps)
