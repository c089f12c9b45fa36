"""The line of the user's code that makes ranks differ."""

import linecache
import re
from collections import defaultdict
from collections.abc import Sequence

from perfkit.additions.ranks.messages import LIMIT, Stack, State
from perfkit.additions.shared.positions import text_at

_RANK = set(LIMIT.names_of_rank)
_PLAIN = set(LIMIT.names_around)
_ASSIGNMENT = re.compile(r"\s*(for )?(?P<names>[\w., ]+?)( in | = )(?P<value>.*)")


def line_of_difference(late: State, others: Sequence[State], parts: Sequence[str]) -> str:
    """The line of these parts at which the late rank spends more than the others; empty if there is none."""
    own = _seconds(late.stacks, parts, late.covered_steps)
    rest = [_seconds(other.stacks, parts, other.covered_steps) for other in others]
    usual = {line: sum(seconds.get(line, (0.0, 0))[0] for seconds in rest) / len(rest) for line in own}
    excess = {line: seconds - usual[line] for line, (seconds, _) in own.items()}
    most = max(excess.values(), default=0.0)
    telling = [line for line in own if most > 0 and excess[line] >= LIMIT.most_of_line * most]
    elsewhere = {line for other in others for stack in other.stacks for line in stack.lines}
    alone = {line for line in own if line not in elsewhere}  # only the late rank passes these
    if outermost := alone.intersection(telling):
        return min(outermost, key=lambda line: own[line][1])
    stacks = [stack for stack in late.stacks if stack.part in parts and alone.intersection(stack.lines)]
    explained = sum(stack.seconds for stack in stacks) / late.covered_steps
    if telling and explained >= LIMIT.most_of_line * most:  # only together, as in a loop
        return max(alone, key=lambda line: own[line][0])
    return max(telling, key=lambda line: own[line][1], default="")


def line_within(state: State, line: str, parts: Sequence[str]) -> str:
    """The innermost line that takes nearly all of a line's time, in these parts; else the line itself."""
    stacks = [stack for stack in state.stacks if line in stack.lines]
    least = LIMIT.nearly_all * sum(stack.seconds for stack in stacks)
    seconds = _seconds(stacks, parts, 1)
    most = [each for each, (spent, _) in seconds.items() if spent >= least]
    return max(most, key=lambda each: seconds[each][1], default=line)


def line_of_most(state: State, parts: Sequence[str]) -> tuple[str, float]:
    """The innermost line with most of the time of these parts, and its share; empty if it gives the loss."""
    seconds = _seconds(state.stacks, parts, 1)
    longest = max((spent for spent, _ in seconds.values()), default=0.0)
    most = [line for line, (spent, _) in seconds.items() if spent >= LIMIT.most_of_line * longest]
    losses = _words(" ".join(map(text_at, state.backward)))
    names = [_words(match["names"]) for match in map(_ASSIGNMENT.match, map(text_at, most)) if match]
    if not most or any(assigned & losses for assigned in names):
        return "", 0.0
    line = max(most, key=lambda line: seconds[line][1])
    return line, seconds[line][0] / sum(stack.seconds for stack in state.stacks)


def share_of_line(state: State, line: str) -> float:
    """The share of a rank's time that it is at a line, or in what that calls."""
    total = sum(stack.seconds for stack in state.stacks)
    return sum(stack.seconds for stack in state.stacks if line in stack.lines) / total if total else 0.0


def _seconds(stacks: Sequence[Stack], parts: Sequence[str], steps: int) -> dict[str, tuple[float, int]]:
    """The seconds of each line in a step, with everything that it calls, and its depth."""
    seconds, depths = defaultdict[str, float](float), dict[str, int]()
    for stack in stacks:
        if stack.part in parts:
            for depth, line in enumerate(dict.fromkeys(stack.lines)):
                seconds[line] += stack.seconds / steps
                depths[line] = max(depth, depths.get(line, 0))
    return {line: (spent, depths[line]) for line, spent in seconds.items()}


def line_of_share(call: str) -> str:
    """The line before a call that uses the rank to choose its inputs; empty if there is none."""
    file, _, end = call.rpartition(":")
    linecache.checkcache(file)  # it may have been edited since
    lines = linecache.getlines(file)[: int(end or 0)]
    needed = _words(lines[-1] if lines else "")
    nearest = 0
    for number, text in reversed(list(enumerate(lines[:-1], 1))):
        assignment = _ASSIGNMENT.match(text)
        is_needed = assignment and _words(assignment["names"]) & needed
        used = _words(assignment["value"]) if assignment and is_needed else set[str]()
        if any("seed" in word for word in used):  # it changes no lengths
            continue
        if used & _RANK:
            line = nearest if used <= _RANK | _PLAIN else number  # an alias of the rank, or a use of it
            return f"{file}:{line}" if line else ""
        if used:
            needed |= used
            nearest = number
        if text.lstrip().startswith("def "):
            break
    return ""


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))
