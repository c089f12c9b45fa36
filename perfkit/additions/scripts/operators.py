"""The time of operators in the backward passes of one step, by the line that made them.

While torch looks for anomalies it notes, at each operator's node of the graph, the stack that made it. So the
time of a node belongs to a line of the forward pass, although no Python runs in the backward pass.
"""

import re
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import Any

import torch

from perfkit.additions.scripts.messages import AGAIN, OWN, limits
from perfkit.additions.scripts.script import Script, ScriptStep, is_capturing
from perfkit.additions.shared.attribution import TimedLine
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.positions import Place, text_at
from perfkit.additions.shared.sampler import Times
from perfkit.additions.shared.tensors import graph
from perfkit.process.failures import is_users
from perfkit.worker.checks import compiled_graphs, synchronize

LIMIT = limits("evidence")
BOTH_PASSES = "forward and backward"
_FRAME = re.compile(r'\s*File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)')

Function = tuple[str, str]  # a file, and the name of a function in it


@dataclass
class _Operator:
    """Facts of a node of a pass; the node itself would keep tensors in memory."""

    seconds: float
    weight: int | None  # the `id` of the weight in whose gradient the pass ends here
    leads_to: list[int]
    lines: list[Place]  # of the user, from the function that asked for the pass to the innermost one


@dataclass
class _Pass:
    """A backward pass. Weights are known by their `id`."""

    operators: list[_Operator]
    waiting: set[int]  # weights whose gradients no optimizer has taken yet
    thrown_away: set[int] = field(default_factory=set)  # weights whose gradients no optimizer ever takes
    is_taken: bool = False  # whether an optimizer took any; if not, the script may use them itself

    def lines_in_vain(self) -> dict[Place, float]:
        """The seconds of `in_vain` by line: the outermost one whose operators are nearly all in vain."""
        in_vain = self.in_vain()
        seconds_of = _by_line(self.operators)
        in_vain_of = _by_line(in_vain)
        lines = defaultdict[Place, float](float)
        for operator in in_vain:
            for line in operator.lines:
                if in_vain_of[line] >= LIMIT.nearly_all * seconds_of[line]:
                    lines[line] += operator.seconds
                    break
        return lines

    def in_vain(self) -> list[_Operator]:
        """The operators that lead only to gradients that are thrown away, if others of the pass are taken."""
        return self.leading_to(self.thrown_away) if self.is_taken else []

    def leading_to(self, weights: Collection[int]) -> list[_Operator]:
        """The operators that lead to gradients of these weights alone."""
        if not weights:
            return []
        sources = defaultdict[int, list[int]](list)  # the operators that lead to each operator
        for index, operator in enumerate(self.operators):
            for target in operator.leads_to:
                sources[target].append(index)
        no_use = {None, *weights}
        front = [index for index, operator in enumerate(self.operators) if operator.weight not in no_use]
        needed = set[int]()
        while front:
            needed |= set(front)
            front = [source for index in front for source in sources[index] if source not in needed]
        return [operator for index, operator in enumerate(self.operators) if index not in needed]


def _by_line(operators: list[_Operator]) -> dict[Place, float]:
    seconds_of = defaultdict[Place, float](float)
    for operator in operators:
        for line in {*operator.lines}:
            seconds_of[line] += operator.seconds
    return seconds_of


class OperatorTimes:
    """Adds up the seconds of operators in backward passes, by the innermost user's line that made them."""

    def __init__(
        self,
        script: Script,
        users: Callable[[str], str],
        untrained: Collection[int] = (),
        still: Collection[int] = (),
    ) -> None:
        self.seconds = defaultdict[Place, float](float)
        self.in_vain = defaultdict[Place, float](float)  # for gradients that no optimizer takes
        self.still_s = 0.0  # for gradients of weights whose learning rate is 0
        self.are_too_many = False  # whether the step has so many operators that they are not timed
        self._script = script
        self._users = users  # maps a file to the user's
        self._untrained = set(untrained)  # weights that nothing trains
        self._still = set(still)  # weights whose learning rate is 0
        self._count = 0
        self._timers = dict[Any, _NodeTimer]()  # of the pass under way
        self._caller: Function | None = None  # of the pass under way
        self._passes = list[_Pass]()

    def time(self, roots: Any) -> None:
        """Times the operators of the backward pass that begins, except for a pass within another one."""
        if self._script.steps.in_backward or self.are_too_many or is_capturing():
            return
        self._end_pass()
        nodes = list(graph(roots, LIMIT.most_traced))
        self._count += len(nodes)
        self.are_too_many = self._count >= LIMIT.most_traced
        if self.are_too_many:
            look_for_anomalies(False)
            return
        frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
        code = next((frame.f_code for frame in frames if is_users(frame.f_code.co_filename)), None)
        self._caller = (code.co_filename, code.co_name) if code else None
        self._timers = {node: _NodeTimer(self, node) for node in nodes}

    def _end_pass(self) -> None:
        """Records the pass that has ended, and releases its nodes."""
        indices = {node: index for index, node in enumerate(self._timers)}
        operators = list[_Operator]()
        for node, timer in self._timers.items():
            timer.remove()
            lines = self._made_at(node)
            leads_to = [indices[target] for target, _ in node.next_functions if target in indices]
            operators.append(_Operator(timer.seconds, _weight(node), leads_to, lines))
            if lines:
                self.seconds[lines[-1]] += timer.seconds
        self._timers = {}
        if operators:
            weights = {operator.weight for operator in operators if operator.weight is not None}
            self._passes.append(_Pass(operators, weights))

    def taken(self, weights: Collection[Any]) -> None:
        """An optimizer takes the gradients of these weights."""
        self._end_pass()
        for backward in self._passes:
            taken = backward.waiting & set(map(id, weights))
            backward.is_taken |= bool(taken)
            backward.waiting -= taken

    def cleared(self, weights: Collection[Any]) -> None:
        """The gradients of these weights are set to zero."""
        self._end_pass()
        for backward in self._passes:
            lost = backward.waiting & set(map(id, weights))
            backward.waiting -= lost
            if backward.is_taken:  # else the script may have read them before, as for several tasks
                backward.thrown_away |= lost

    def now(self) -> float:
        """The time when the device has done its work, minus the time of checkpointed forward passes."""
        synchronize(self._script.device)
        return clock() - self._script.steps.now.spent[AGAIN]

    def stop(self) -> None:
        """Adds up the seconds that were in vain, and those for weights whose learning rate is 0."""
        self._end_pass()
        for backward in self._passes:
            backward.thrown_away |= backward.waiting & self._untrained
            for line, seconds in backward.lines_in_vain().items():
                self.in_vain[line] += seconds
            self.still_s += sum(operator.seconds for operator in backward.leading_to(self._still))
        self._passes.clear()

    def _made_at(self, node: Any) -> list[Place]:
        """The user's lines that led to an operator, from the function that asked for the pass inwards."""
        lines = list[Place]()
        for text in node.metadata.get("traceback_", []):
            frame = _FRAME.match(text)
            if frame and is_users(frame["file"]):
                if (frame["file"], frame["function"]) == self._caller:
                    lines.clear()  # what is outside of it
                lines.append((self._users(frame["file"]), int(frame["line"])))
        return lines


class _NodeTimer:
    def __init__(self, times: OperatorTimes, node: Any) -> None:
        self.seconds = 0.0
        self._times = times
        self._began = 0.0
        is_weight = not node.next_functions
        self._hooks = [] if is_weight else [node.register_prehook(self._begin), node.register_hook(self._end)]

    def _begin(self, _gradients: Any) -> None:
        self._began = self._times.now()

    def _end(self, _inputs: Any, _outputs: Any) -> None:
        self.seconds += self._times.now() - self._began

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _weight(node: Any) -> int | None:
    return None if node.next_functions or not hasattr(node, "variable") else id(node.variable)


def look_for_anomalies(wanted: bool) -> None:
    """Switches anomaly detection, which notes the stacks that make operators; a script's own mode stays."""
    if not (torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()):
        torch.set_anomaly_enabled(wanted, check_nan=False)


def of_one_step(times: OperatorTimes) -> Generator[None, ScriptStep, None]:
    """Times the operators of the next step, if nothing in it is compiled and no anomalies are looked for."""
    if compiled_graphs() or torch.is_anomaly_enabled():
        return
    look_for_anomalies(True)
    try:
        step = yield
    finally:
        look_for_anomalies(False)
        times.stop()
    if step.marks or times.are_too_many:  # it was not a plain step, or is known only in part
        times.seconds.clear()
        times.in_vain.clear()


def lines_of(times: OperatorTimes, looks: Times) -> list[TimedLine]:
    """The lines whose operators take most of both passes, if any; `looks` are times of other steps."""
    forward = defaultdict[Place, float](float)
    for (part, stack), seconds in looks.items():
        if stack and part in ("forward", OWN):
            forward[stack[-1].place] += seconds
    scale = _scale(times, looks)
    backward = {place: scale * seconds for place, seconds in times.seconds.items()}
    lines = [_line(BOTH_PASSES, place, forward[place] + seconds) for place, seconds in backward.items()]
    least = LIMIT.least_of_passes * sum(looks.values())
    return sorted((line for line in lines if line.seconds >= least), key=lambda line: -line.seconds)


def lines_in_vain(times: OperatorTimes, looks: Times) -> list[TimedLine]:
    """The lines whose backward pass is for gradients that no optimizer takes, the largest first."""
    seconds, scale = times.in_vain, _scale(times, looks)
    largest_first = sorted(seconds, key=seconds.__getitem__, reverse=True)
    return [_line("backward", place, scale * seconds[place]) for place in largest_first]


def still_s(times: OperatorTimes, looks: Times) -> float | None:
    """Seconds for gradients of weights whose learning rate is 0; None if operators were not timed."""
    return _scale(times, looks) * times.still_s if times.seconds else None


def _scale(times: OperatorTimes, looks: Times) -> float:
    """Seconds of the backward passes that were looked at, for each second of those that were timed."""
    looked_s = sum(seconds for (part, _), seconds in looks.items() if part == "backward")
    return looked_s / max(sum(times.seconds.values()), 1e-9)


def _line(part: str, place: Place, seconds: float) -> TimedLine:
    file, line = place
    return TimedLine(part, file, line, seconds, text=text_at(f"{file}:{line}"))
