"""What a diagnosis asks for, as an edit: the lines of the training program that a switch changes."""

from __future__ import annotations

from collections.abc import Iterable

from perfkit import workloads
from perfkit.recipe import Recipe, switches
from perfkit.trace.diagnosis import Bottleneck


def following(recipe: Recipe, name: str) -> Recipe:
    """The recipe with the next of the values that are worth trying for a switch."""
    switch, now = switches()[name], getattr(recipe, name)
    at = switch.levels.index(now) if now in switch.levels else 0
    level = switch.levels[(at + 1) % len(switch.levels)] if switch.levels else switch.default
    return recipe.replace(**{name: level})


def edits(findings: Iterable[Bottleneck], recipe: Recipe, device: str) -> list[tuple[str, str]]:
    """For each bottleneck the first switch that it suggests: a heading, and the diff of the training program.

    Args:
        findings: of a trace.
        recipe: that was recorded; the plain one where that is not known.
        device: where it trains.
    """
    from perfkit import export

    first = dict.fromkeys(finding.try_next[0] for finding in findings if finding.try_next)
    diffs, workload = [], workloads.reference("photos")
    for name in first:
        other = following(recipe, name)
        before, after = (export.script(one, workload, {}, device, 0, 1) for one in (recipe, other))
        diffs.append((f"--set {name}={getattr(other, name)}", export.diff(before, after)))
    return [(heading, text) for heading, text in diffs if text]
