"""Which line of the user's a difference between ranks comes from."""

import linecache
import re
from collections import defaultdict
from collections.abc import Sequence

from perfkit.additions.ranks.messages import LIMIT, Stack, State
from perfkit.additions.shared.lines import text_at

_RANK = {"rank", "get_rank", "local_rank", "global_rank", "RANK", "LOCAL_RANK", "process_index"}
"""Names by which a script asks which rank it is, and those around them that say nothing more."""
_PLAIN = {"int", "os", "environ", "get", "getenv", "dist", "torch", "distributed", "self", "args"}
_GIVES = re.compile(r"\s*(for )?(?P<names>[\w., ]+?)( in | = )(?P<value>.*)")  # gives names a value


def line_of_difference(late: State, others: Sequence[State], parts: Sequence[str]) -> str:
    """The line of these parts at which the late rank spends more than the others; empty if there is none."""
    own = _seconds(late.stacks, parts, late.told)
    rest = [_seconds(other.stacks, parts, other.told) for other in others]
    usual = {line: sum(each.get(line, (0.0, 0))[0] for each in rest) / len(rest) for line in own}
    more = {line: seconds - usual[line] for line, (seconds, _) in own.items()}
    most = max(more.values(), default=0.0)
    telling = [line for line in own if most > 0 and more[line] >= LIMIT.most_of_line * most]
    passed = {line for other in others for stack in other.stacks for line in stack.lines}
    alone = {line for line in own if line not in passed}
    if outermost := alone.intersection(telling):
        return min(outermost, key=lambda line: own[line][1])  # of those that only this rank passes
    together = [stack for stack in late.stacks if stack.part in parts and alone.intersection(stack.lines)]
    if telling and sum(stack.seconds for stack in together) >= LIMIT.most_of_line * most * late.told:
        return max(alone, key=lambda line: own[line][0])  # only together they explain it, as in a loop
    return max(telling, key=lambda line: own[line][1], default="")


def line_of_most(state: State, parts: Sequence[str]) -> tuple[str, float]:
    """The innermost line with most of the time of these parts, if it is not the loss's; its share of all."""
    seconds = _seconds(state.stacks, parts, 1)
    whole = max((spent for spent, _ in seconds.values()), default=0.0)
    most = [line for line, (spent, _) in seconds.items() if spent >= LIMIT.most_of_line * whole]
    losses = _words(" ".join(map(text_at, state.backward)))
    given = [_words(match["names"]) for match in map(_GIVES.match, map(text_at, most)) if match]
    if not most or any(names & losses for names in given):  # the loss is a part of the training
        return "", 0.0
    line = max(most, key=lambda line: seconds[line][1])
    return line, seconds[line][0] / sum(stack.seconds for stack in state.stacks)


def _seconds(stacks: Sequence[Stack], parts: Sequence[str], steps: int) -> dict[str, tuple[float, int]]:
    """Seconds a step of each line with all that it calls, and how deep it is."""
    seconds, depth = defaultdict[str, float](float), dict[str, int]()
    for stack in stacks:
        if stack.part in parts:
            for at, line in enumerate(dict.fromkeys(stack.lines)):
                seconds[line] += stack.seconds / steps
                depth[line] = max(at, depth.get(line, 0))
    return {line: (spent, depth[line]) for line, spent in seconds.items()}


def line_of_share(where: str) -> str:
    """The line before a call whose value uses the rank, and gives it its inputs; empty if none does."""
    file, _, number = where.rpartition(":")
    linecache.checkcache(file)  # it may have been edited since
    lines = linecache.getlines(file)[: int(number or 0)]
    needed = _words(lines[-1] if lines else "")
    nearest = 0
    for at in range(len(lines) - 1, 0, -1):
        given = _GIVES.match(lines[at - 1])
        used = _words(given["value"]) if given and _words(given["names"]) & needed else set[str]()
        if any("seed" in word for word in used):  # it changes no lengths
            continue
        if used & _RANK:
            line = nearest if used <= _RANK | _PLAIN else at  # the rank itself, under another name
            return f"{file}:{line}" if line else ""
        if used:
            needed |= used
            nearest = at
        if lines[at - 1].lstrip().startswith("def "):
            break
    return ""


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))
