"""Which lines' operators take the time of backward passes, in one step, and for which gradients nobody asks.

While torch looks for anomalies it notes, at each operator's node of the graph, the stack that made it. So the
time of a node belongs to a line of the forward pass, though no Python runs in the backward pass.
"""

import re
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from perfkit.additions.scripts.messages import AGAIN, OWN, limits
from perfkit.additions.scripts.script import Script, ScriptStep, is_capturing
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.lines import Line, Place, Times, text_at
from perfkit.additions.shared.tensors import graph
from perfkit.process.failures import is_users
from perfkit.worker.checks import compiled_graphs, synchronize

LIMIT = limits("evidence")
BOTH_PASSES = "forward and backward"
_FRAME = re.compile(r'\s*File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)')

Function = tuple[str, str]
"""A file, and the name of a function in it."""


@dataclass
class _Operator:
    """A node of a pass, in numbers: nodes themselves would keep what they hold in memory."""

    seconds: float
    weight: int | None  # the `id` of the weight in whose gradient the pass ends here
    leads_to: list[int]
    made_at: Place | None
    called_at: Place | None  # in the function that asked for the pass


@dataclass
class _Pass:
    """A backward pass. Weights are told by their `id`."""

    operators: list[_Operator]
    waiting: set[int]  # weights whose gradients no optimizer has taken yet
    thrown_away: set[int] = field(default_factory=set)  # weights whose gradients none ever takes
    is_taken: bool = False  # whether an optimizer has taken any: else the script may use them itself

    def in_vain(self) -> list[_Operator]:
        """The operators that lead to such weights only, if others train by this pass."""
        if not (self.is_taken and self.thrown_away):
            return []
        users = defaultdict[int, list[int]](list)
        for at, each in enumerate(self.operators):
            for before in each.leads_to:
                users[before].append(at)
        no_use = {None, *self.thrown_away}
        found = [at for at, each in enumerate(self.operators) if each.weight not in no_use]
        needed = set[int]()
        while found:
            needed |= set(found)
            found = [user for at in found for user in users[at] if user not in needed]
        return [each for at, each in enumerate(self.operators) if at not in needed]


class OperatorTimes:
    """Adds up seconds of operators in backward passes, by the innermost line of the user's that made them."""

    def __init__(self, script: Script, users: Callable[[str], str]) -> None:
        self.seconds = defaultdict[Place, float](float)
        self.in_vain = defaultdict[Place, float](float)  # those of gradients that are thrown away
        self.are_too_many = False  # operators of this step, so that nothing is known of it
        self._script = script
        self._users = users  # maps a file to the user's
        self._count = 0
        self._timers = dict[Any, _NodeTimer]()  # of the pass under way
        self._caller: Function | None = None  # that asked for it
        self._passes = list[_Pass]()

    def time(self, roots: Any) -> None:
        """Times the operators of the backward pass that begins, but not those of a pass within it."""
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
        """Keeps numbers of the pass that has ended; its nodes are as they were, and may be freed."""
        numbers = {node: at for at, node in enumerate(self._timers)}
        operators = list[_Operator]()
        for node, timer in self._timers.items():
            timer.remove()
            lines = list(self._made_at(node))
            leads_to = [numbers[before] for before, _ in node.next_functions if before in numbers]
            own = (place for place, function in lines if function == self._caller)
            made_at = lines[0][0] if lines else None
            operators.append(_Operator(timer.seconds, _weight(node), leads_to, made_at, next(own, None)))
            if made_at:
                self.seconds[made_at] += timer.seconds
        self._timers = {}
        if operators:
            weights = {each.weight for each in operators if each.weight is not None}
            self._passes.append(_Pass(operators, weights))

    def taken(self, weights: Collection[Any]) -> None:
        """An optimizer takes the gradients of these weights."""
        self._end_pass()
        for each in self._passes:
            taken = each.waiting & set(map(id, weights))
            each.is_taken |= bool(taken)
            each.waiting -= taken

    def cleared(self, weights: Collection[Any]) -> None:
        """The gradients of these weights are set to zero."""
        self._end_pass()
        for each in self._passes:
            lost = each.waiting & set(map(id, weights))
            each.thrown_away |= lost
            each.waiting -= lost

    def now(self) -> float:
        """The time when the device has done what was launched, without what is computed again."""
        synchronize(self._script.device)
        return clock() - self._script.steps.now.spent[AGAIN]

    def stop(self) -> None:
        """Adds up what was in vain."""
        self._end_pass()
        for each in self._passes:
            for operator in each.in_vain():
                if operator.called_at:
                    self.in_vain[operator.called_at] += operator.seconds
        self._passes.clear()

    def _made_at(self, node: Any) -> Iterator[tuple[Place, Function]]:
        """The user's lines that led to an operator, the innermost first, with their functions."""
        for text in reversed(node.metadata.get("traceback_", [])):
            frame = _FRAME.match(text)
            if frame and is_users(frame["file"]):
                function = frame["file"], frame["function"]
                yield (self._users(frame["file"]), int(frame["line"])), function


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
    """Has torch note the stacks that make operators, or no longer; a mode that the script set stays."""
    if not (torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()):
        torch.set_anomaly_enabled(wanted, check_nan=False)


def of_one_step(times: OperatorTimes) -> Generator[None, ScriptStep, None]:
    """Has the next step timed, if it is a plain one, not compiled, and the script looks for no anomalies."""
    if compiled_graphs() or torch.is_anomaly_enabled():
        return
    look_for_anomalies(True)
    try:
        step = yield
    finally:
        look_for_anomalies(False)
        times.stop()
    if step.marks or times.are_too_many:  # nothing can be said of it
        times.seconds.clear()
        times.in_vain.clear()


def lines_of(times: OperatorTimes, looks: Times) -> list[Line]:
    """The lines whose operators take most of both passes, if these are some; `looks` were at other steps."""
    forward = defaultdict[Place, float](float)
    for (part, stack), spent in looks.items():
        if stack and part in ("forward", OWN):
            forward[stack[-1].place] += spent
    backward = _as_looked(times.seconds, times, looks)
    found = [_line(BOTH_PASSES, place, forward[place] + spent) for place, spent in backward.items()]
    least = LIMIT.least_of_passes * sum(looks.values())
    return sorted((line for line in found if line.seconds >= least), key=lambda line: -line.seconds)


def lines_in_vain(times: OperatorTimes, looks: Times) -> list[Line]:
    """The lines whose operators have a backward pass for gradients that are thrown away, in order."""
    spent = _as_looked(times.in_vain, times, looks)
    return [_line("backward", place, spent[place]) for place in sorted(spent, key=spent.__getitem__)[::-1]]


def _as_looked(seconds: Mapping[Place, float], times: OperatorTimes, looks: Times) -> dict[Place, float]:
    """These seconds of the backward passes that were timed, in those that were looked at."""
    looked_s = sum(spent for (part, _), spent in looks.items() if part == "backward")
    timed_s = sum(times.seconds.values())
    return {place: looked_s * spent / timed_s for place, spent in seconds.items()}


def _line(part: str, place: Place, seconds: float) -> Line:
    file, line = place
    return Line(part, file, line, seconds, text=text_at(f"{file}:{line}"))
