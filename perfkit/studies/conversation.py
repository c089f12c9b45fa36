"""A training as its parent sees it: the questions that perfkit itself asks, with typed answers."""

from typing import Any

from perfkit.process.child import Child, Conversation
from perfkit.worker.messages import Peak, TimedSteps, TrainingReport


class TrainingConversation(Conversation):
    """Asks a process that trains the questions of `Procedures`; each raises what `ask` raises."""

    def train(self, **how: Any) -> TrainingReport:
        return self.ask("train", **how)  # type: ignore[no-any-return]

    def slice(self, samples: int, seconds: float) -> TimedSteps:
        return self.ask("slice", samples=samples, seconds=seconds)  # type: ignore[no-any-return]

    def cached_batch(self, samples: int, seconds: float) -> TimedSteps:
        return self.ask("cached_batch", samples=samples, seconds=seconds)  # type: ignore[no-any-return]

    def peak(self) -> Peak:
        return self.ask("peak")  # type: ignore[no-any-return]


StartedTraining = tuple[TrainingConversation, TrainingReport]  # warm, and suspended or about to be


class TrainingChild(TrainingConversation, Child):
    """A measuring process that trains."""
