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

from perfkit.additions.scripts.messages import OWN, limits
from perfkit.additions.scripts.script import Script, ScriptStep, is_capturing
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.lines import Line, Times, text_at
from perfkit.additions.shared.tensors import graph
from perfkit.process.failures import is_users
from perfkit.worker.checks import compiled_graphs, synchronize

LIMIT = limits("evidence")
BOTH_PASSES = "forward and backward"
_FRAME = re.compile(r'\s*File "(?P<file>.+?)", line (?P<line>\d+), in (?P<function>.+)')

Place = tuple[str, int]
"""A file and a line."""

Function = tuple[str, str]
"""A file, and the name of a function in it."""


@dataclass(eq=False)
class _Pass:
    """A backward pass: the function that asked for it, and its nodes. Weights are told by their `id`."""

    caller: Function
    nodes: list[Any]
    waiting: set[int]  # weights whose gradients no optimizer has taken yet
    thrown_away: set[int] = field(default_factory=set)  # weights whose gradients none ever takes

    def in_vain(self) -> set[Any]:
        """The nodes that lead to such weights only."""
        users = defaultdict[Any, list[Any]](list)
        for node in self.nodes:
            for before, _ in node.next_functions:
                users[before].append(node)
        needed = {node for node in self.nodes if _weight(node) not in self.thrown_away | {None}}
        found = list(needed)
        while found:
            found = [user for node in found for user in users[node] if user not in needed]
            needed |= set(found)
        return {node for node in self.nodes if node not in needed}


class OperatorTimes:
    """Adds up seconds of operators in backward passes, by the innermost line of the user's that made them."""

    def __init__(self, script: Script, users: Callable[[str], str]) -> None:
        self.seconds = defaultdict[Place, float](float)
        self.in_vain = defaultdict[Place, float](float)  # those of gradients that are thrown away
        self._script = script
        self._users = users  # maps a file to the user's
        self._timers = dict[Any, _NodeTimer]()
        self._passes = list[_Pass]()

    def time(self, roots: Any) -> None:
        """Times the operators of the backward pass that begins, but not those of a pass within it."""
        if self._script.steps.in_backward or is_capturing():
            return
        frames = (frame for frame, _ in traceback.walk_stack(sys._getframe(1)))
        code = next((frame.f_code for frame in frames if is_users(frame.f_code.co_filename)), None)
        nodes = list(graph(roots, LIMIT.most_traced))
        if code and len(nodes) < LIMIT.most_traced:  # else nobody knows where some of them lead
            weights = {weight for weight in map(_weight, nodes) if weight is not None}
            self._passes.append(_Pass((code.co_filename, code.co_name), nodes, weights))
        for node in nodes:
            if node.next_functions and node not in self._timers:
                self._timers[node] = _NodeTimer(self, node)

    def taken(self, weights: Collection[Any]) -> None:
        """An optimizer takes the gradients of these weights."""
        for each in self._passes:
            each.waiting -= set(map(id, weights))

    def cleared(self, weights: Collection[Any]) -> None:
        """The gradients of these weights are set to zero."""
        for each in self._passes:
            lost = each.waiting & set(map(id, weights))
            each.thrown_away |= lost
            each.waiting -= lost

    def now(self) -> float:
        """The time when the device has done what was launched."""
        synchronize(self._script.device)
        return clock()

    def stop(self) -> None:
        """Adds up, and leaves the nodes as they were; a graph that is kept may be gone through again."""
        for node, timer in self._timers.items():
            timer.remove()
            if place := next((place for place, _ in self._made_at(node)), None):
                self.seconds[place] += timer.seconds
        for each in self._passes:
            for node in each.in_vain() & self._timers.keys() if each.thrown_away else ():
                places = [place for place, function in self._made_at(node) if function == each.caller]
                for place in places[:1]:
                    self.in_vain[place] += self._timers[node].seconds
        self._timers.clear()
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
        self._hooks = node.register_prehook(self._begin), node.register_hook(self._end)

    def _begin(self, _gradients: Any) -> None:
        self._began = self._times.now()

    def _end(self, _inputs: Any, _outputs: Any) -> None:
        self.seconds += self._times.now() - self._began

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _weight(node: Any) -> int | None:
    """The `id` of the weight in whose gradient a node ends, if it is such a node."""
    return None if node.next_functions or not hasattr(node, "variable") else id(node.variable)


def of_one_step(times: OperatorTimes) -> Generator[None, ScriptStep, None]:
    """Has the next step timed, if it is a plain one, not compiled, and the script looks for no anomalies."""
    if compiled_graphs() or torch.is_anomaly_enabled():
        return
    torch.set_anomaly_enabled(True, check_nan=False)
    try:
        step = yield
        times.stop()
        if step.marks:
            times.seconds.clear()
            times.in_vain.clear()
    finally:
        times.stop()
        torch.set_anomaly_enabled(False)


def lines_of(times: OperatorTimes, looks: Times) -> list[Line]:
    """The lines whose operators take most of both passes, if these are some; `looks` were at other steps."""
    forward = defaultdict[Place, float](float)
    for (part, stack), spent in looks.items():
        if stack and part in ("forward", OWN):
            forward[stack[-1].file, stack[-1].line] += spent
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
