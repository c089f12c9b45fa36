"""What the operators of a backward pass tell: which are in vain, and which results the loss does not need."""

import math
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from graphlib import TopologicalSorter

from perfkit.additions.scripts.messages import limits
from perfkit.additions.shared.positions import Place

LIMIT = limits("passes")
Indices = dict[int, list[int]]  # of operators, by that of an operator


@dataclass
class Operator:
    """Facts of a node of a pass; the node itself would keep tensors in memory."""

    seconds: float
    weight: int | None  # the `id` of the weight in whose gradient the pass ends here
    leads_to: list[int]
    lines: list[Place]  # of the user, from the function that asked for the pass to the innermost one
    name: str = ""  # `Addmm`
    elements: float = math.inf  # of its result in the forward pass; infinite if this is not known


@dataclass
class Selected:
    """A product of matrices, or a convolution, of whose result selections keep only a part."""

    place: Place  # the line that computes it
    selected_at: Place  # the line of the largest selection
    elements: float
    needed: float  # elements of it that are kept, at most
    seconds: float  # of its backward pass
    up_to_selections_s: float  # the same with all operators from it to the selections


@dataclass
class Pass:
    """A backward pass. Weights are known by their `id`."""

    operators: list[Operator]
    waiting: set[int]  # weights whose gradients no optimizer has taken yet
    thrown_away: set[int] = field(default_factory=set)  # weights whose gradients no optimizer ever takes
    is_taken: bool = False  # whether an optimizer took any; if not, the script may use them itself

    def lines_in_vain(self) -> dict[Place, float]:
        """The seconds of `in_vain` by line: the outermost one whose operators are nearly all in vain."""
        in_vain = self.in_vain()
        seconds_of = by_line(self.operators)
        in_vain_of = by_line(in_vain)
        lines = defaultdict[Place, float](float)
        for operator in in_vain:
            for line in operator.lines:
                if in_vain_of[line] >= LIMIT.nearly_all * seconds_of[line]:
                    lines[line] += operator.seconds
                    break
        return lines

    def in_vain(self) -> list[Operator]:
        """The operators that lead only to gradients that are thrown away, if others of the pass are taken."""
        return self.leading_to(self.thrown_away) if self.is_taken else []

    def leading_to(self, weights: Collection[int]) -> list[Operator]:
        """The operators that lead to gradients of these weights alone."""
        if not weights:
            return []
        sources = self._sources()
        no_use = {None, *weights}
        front = [index for index, operator in enumerate(self.operators) if operator.weight not in no_use]
        needed = set[int]()
        while front:
            needed |= set(front)
            front = [source for index in front for source in sources[index] if source not in needed]
        return [operator for index, operator in enumerate(self.operators) if index not in needed]

    def selected(self) -> Iterator[Selected]:
        """The products of whose results the loss needs only a small part."""
        sources = self._sources()
        needed = self._needed(sources)
        seconds_of = by_line(self.operators)
        for index, product in enumerate(self.operators):
            is_large = LIMIT.least_elements <= product.elements < math.inf
            if product.name not in LIMIT.products or not is_large:
                continue
            most = LIMIT.most_kept * product.elements
            if needed[index] > most:
                continue
            between, selections = self._up_to_selections(index, sources, most)
            largest = max(selections, key=lambda operator: operator.elements)
            if product.lines and largest.lines:
                # The line of a function that other parts of the model call, too, is not the one to change.
                place = min(reversed(product.lines), key=seconds_of.__getitem__)
                yield Selected(
                    place,
                    selected_at=largest.lines[-1],
                    elements=product.elements,
                    needed=needed[index],
                    seconds=product.seconds,
                    up_to_selections_s=sum(operator.seconds for operator in between + selections),
                )

    def _sources(self) -> Indices:
        """The operators that lead to each operator: those that use its result in the forward pass."""
        sources: Indices = {index: [] for index in range(len(self.operators))}
        for index, operator in enumerate(self.operators):
            for target in operator.leads_to:
                sources[target].append(index)
        return sources

    def _needed(self, sources: Indices) -> dict[int, float]:
        """How many elements of each operator's result the loss needs, at most."""
        needed = dict[int, float]()
        for index in TopologicalSorter(sources).static_order():  # what uses a result comes before it
            uses = [self._needed_by(self.operators[source], needed[source]) for source in sources[index]]
            needed[index] = min(self.operators[index].elements, sum(uses) if uses else math.inf)
        return needed

    @staticmethod
    def _needed_by(operator: Operator, needed: float) -> float:
        """How many elements of an argument an operator uses for those of its result that are needed."""
        return needed if operator.name in LIMIT.by_element else math.inf

    def _up_to_selections(
        self, product: int, sources: Indices, most: float
    ) -> tuple[list[Operator], list[Operator]]:
        """A product with the operators that follow it, and the selections of at most so many elements."""
        between, selections = {product}, set[int]()
        front = {product}
        while front:
            following = {source for index in front for source in sources[index]}
            selected = {index for index in following if self.operators[index].elements <= most}
            front = following - selected - between
            between |= front
            selections |= selected
        return [self.operators[index] for index in between], [self.operators[index] for index in selections]


def by_line(operators: list[Operator]) -> dict[Place, float]:
    """Seconds by line, with those of the lines that it calls."""
    seconds_of = defaultdict[Place, float](float)
    for operator in operators:
        for line in {*operator.lines}:
            seconds_of[line] += operator.seconds
    return seconds_of
