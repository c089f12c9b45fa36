"""What each optimization of a set is worth, whatever the order; `studies.attribute` measures it."""

from __future__ import annotations

from msgspec import Struct


class Effect(Struct, frozen=True, kw_only=True):
    """What one optimization is worth, as ratios of speeds; None where the sets it needs were not measured."""

    name: str
    title: str
    alone: float | None
    """On the baseline."""
    last: float | None
    """On top of all the others (leave one out)."""
    stepwise: float | None
    """In the order of the ladder."""
    shapley: float | None
    low: float | None
    high: float | None
    """95% interval of the Shapley value."""

    def describe(self) -> str:
        """One line for people."""
        values = ((self.alone, "alone"), (self.last, "once the others are on"))
        gains = [f"{value:.2f}× {where}" for value, where in values if value is not None]
        mean = f", {self.shapley:.2f}× on average" if self.shapley is not None else ""
        return f"{self.title} is worth {' and '.join(gains) or 'n/a'}{mean}"


class Interaction(Struct, frozen=True, kw_only=True):
    """Two optimizations together, over the product of each alone: above 1 they help each other."""

    a: str
    b: str
    factor: float


class Attribution(Struct, frozen=True, kw_only=True):
    """What was measured, and what follows from it."""

    effects: list[Effect]
    interactions: list[Interaction]
    whole: float | None
    """All of them together over the baseline."""
    sets: int
    orders: int
    """Orders over which the Shapley values are averaged."""
    exact: bool
    complete: bool
    """Whether everything planned was measured; if not, the next call continues from the store."""
    left_out: dict[str, str]
    """Optimizations that could not act, and why."""

    def sentences(self) -> list[str]:
        """In words, the largest first."""
        ranked = sorted(self.effects, key=lambda effect: -(effect.shapley or 0))
        left_out = [f"{name} is left out: {why}" for name, why in self.left_out.items()]
        return [*(effect.describe() for effect in ranked), *left_out]
