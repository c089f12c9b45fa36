"""The optimizations. Each is declared once, in its card `cards/NAME.md`: front matter (TOML), then prose."""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from perfkit.errors import one_of
from perfkit.ladder.presets import Sizing
from perfkit.recipe import Recipe, Value
from perfkit.rules import Target, applicable, joined

Exactness = Literal["bitwise", "tolerance", "changes training"]


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the articles say of an optimization."""

    figure: str
    machine: str = ""
    derived: str = ""
    """What we computed from the article's figures."""
    times: float | None = None
    """How many times as fast as the article's stage before it, by its figures."""

    def __str__(self) -> str:
        derived = f"derived from it: {self.derived}" if self.derived else ""
        notes = "; ".join(filter(None, (self.machine, derived)))
        return f"{self.figure} ({notes})" if notes else self.figure


class Optimization(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One named change of a recipe: the front matter of its card, and the prose below it."""

    name: str
    title: str
    question: str
    settings: Annotated[dict[str, Value], msgspec.Meta(min_length=1)]
    """The switches it sets. The first is its own: where that one cannot act, the optimization does not apply.
    `"$NAME"` is the number of that name in `Sizing`."""
    documentation: Annotated[str, msgspec.Meta(pattern="^https://")]
    """The official page on it."""
    exactness: Exactness
    """Of the change itself: switches that only make it possible, such as `ranks`, do not count."""
    position: int | None = None
    """Its place in the default ladder; None for one that is not part of it."""
    published: Published | None = None
    prose: str

    @property
    def switch(self) -> str:
        """Its own switch."""
        return next(iter(self.settings))

    def changes(self, sizes: Sizing) -> Mapping[str, Value]:
        """What it sets on a machine."""
        return {
            name: getattr(sizes, value[1:]) if isinstance(value, str) and value.startswith("$") else value
            for name, value in self.settings.items()
        }

    def card(self) -> str:
        """What to know about it, in Markdown."""
        return f"{self.prose}\n\n[Official documentation]({self.documentation})"


def read(path: Path) -> Optimization:
    """The card in a file."""
    _, front, prose = path.read_text(encoding="utf-8").split("+++\n", 2)
    fields = {**tomllib.loads(front), "name": path.stem, "prose": prose.strip()}
    return msgspec.convert(fields, Optimization)


_CARDS = [read(path) for path in sorted((Path(__file__).parent / "cards").glob("*.md"))]
_CARDS.sort(key=lambda card: math.inf if card.position is None else card.position)

OPTIMIZATIONS = {card.name: card for card in _CARDS}
"""Every optimization by name: the default ladder first, in its order, then the others."""

LADDER = tuple(name for name, card in OPTIMIZATIONS.items() if card.position is not None)
"""The default ladder: the article's order, with stages that it does not have, and without its
`set_to_none=True`, which has been torch's default since 2.0."""


def optimization(name: str) -> Optimization:
    """An optimization by name.

    Raises:
        InvalidValue: no such optimization.
    """
    if name not in OPTIMIZATIONS:
        raise one_of(name, list(OPTIMIZATIONS), "stage")
    return OPTIMIZATIONS[name]


def exactness(recipe: Recipe, baseline: Recipe) -> Exactness:
    """The loosest class among the optimizations whose own switch differs from the baseline's.

    Batch size, accumulation and ranks are judged together: training changes if the number of samples in an
    optimizer step does. If a batch is only split differently, the sum of its gradients is rounded differently
    (and batch normalisation sees the parts).
    """
    changed, batch = set(recipe.diff(baseline)), {"batch_size", "accumulation", "ranks"}
    classes = [o.exactness for o in OPTIMIZATIONS.values() if o.switch in changed - batch]
    if changed & batch:
        samples = {each.batch_size * each.accumulation * each.ranks for each in (recipe, baseline)}
        classes.append("tolerance" if len(samples) == 1 else "changes training")
    order: list[Exactness] = ["bitwise", "tolerance", "changes training"]
    return max(classes, key=order.index, default="bitwise")


KEPT = "kept"
"""The name of the row that ends a ladder: everything that was kept, measured afresh."""


@dataclass(frozen=True)
class Stage:
    """One rung: the recipe so far plus one optimization."""

    name: str
    title: str
    recipe: Recipe
    reason: str = ""
    """Why it cannot be measured on this machine; empty where it can."""
    not_applied: Mapping[str, str] | None = None
    """Switches of this stage that cannot act here, with the reason, where others of it can."""


def below(name: str) -> tuple[str, ...]:
    """The rungs of the default ladder below an optimization; all of them for one that is not part of it."""
    return LADDER[1 : LADDER.index(name)] if name in LADDER else LADDER[1:]


def stage(rung: Optimization, before: Recipe, sizes: Sizing, target: Target) -> Stage:
    """One rung on top of a recipe: what it changes on this machine, or why it cannot."""
    recipe = before.replace(**rung.changes(sizes))
    changed = recipe.diff(before)
    acting, reasons = applicable(recipe, target)
    refused = {name: why for name, why in reasons.items() if name in changed}
    if rung.switch in refused or (changed and len(refused) == len(changed)):
        return Stage(rung.name, rung.title, before, reason=joined(refused))
    if not changed:
        return Stage(rung.name, rung.title, before, reason="nothing to change: the recipe has it already")
    return Stage(rung.name, rung.title, acting, not_applied=refused)
