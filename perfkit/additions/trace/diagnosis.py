"""Finds the bottlenecks in an analysis, and the switches that could act on them."""

from typing import Any

from perfkit.additions.trace import data
from perfkit.additions.trace.model import Analysis, Bottleneck

_BOUNDED = 0.95  # of a step: a larger exposed share gives a useless Amdahl bound
_FEW = 0.05  # of a step: a smaller share of first calls does not matter


def diagnose(analysis: Analysis) -> list[Bottleneck]:
    """The bottlenecks whose share of a step reaches their threshold, the longest exposed time first.

    Amdahl's law bounds the gain. Without any of the exposed time, the step would be 1 / (1 - exposed / step)
    times as fast, so no fix can gain more. Calls that are slow only once are not part of that step.

    Empty if nothing stands out, or the trace is too damaged for a diagnosis (see `analysis.health`).
    """
    if not analysis.mean_step_us or analysis.mean_us["other"] is None or analysis.is_empty:
        return []
    device = "accelerator" if analysis.has_accelerator else analysis.device["kind"]
    known = data.table("words")["bottleneck"].items()
    rows = [_bottleneck(name, words, analysis) for name, words in known if device in words["on"]]
    return sorted(filter(None, rows), key=lambda row: -row.exposed_us)


def _bottleneck(name: str, words: dict[str, Any], analysis: Analysis) -> Bottleneck | None:
    """The bottleneck of this name in words.toml; None if it is below its threshold."""
    length = analysis.mean_step_us or 0.0
    of = "the recording" if analysis.is_whole else "a step"
    once = _idle(analysis, "first_calls")
    if once >= _FEW * length and name != "first-calls":
        length -= once
        of += " without first calls"
    exposed = _exposed(analysis, words)
    share = exposed / length if length else 0.0
    if share < words["least"]:
        return None
    message = words["message"].format(longest=_longest(analysis))
    return Bottleneck(
        bottleneck=name.removesuffix("-cpu"),
        message=f"{share:.0%} of {of}: {message}",
        exposed_us=exposed,
        share_of_step=share,
        gain_at_most=1 / (1 - share) if share < _BOUNDED and not words.get("unbounded") else None,
        try_next=[switch for switch in words.get("try", []) if _can_act(switch, analysis)],
    )


def _exposed(analysis: Analysis, words: dict[str, Any]) -> float:
    """The exposed µs per step of a bottleneck, from its part of the step and its cause of idle time."""
    part = words.get("part", "")
    exposed = analysis.mean_us.get(part) or 0.0
    if part == "memcpy":
        across = [row.us_per_step for row in analysis.transfers if row.direction in ("HtoD", "DtoH")]
        exposed = min(exposed, sum(across))
    return exposed + _idle(analysis, words.get("idle", ""))


def _idle(analysis: Analysis, cause: str) -> float:
    return sum(row.us_per_step for row in analysis.idle if row.cause == cause)


def _longest(analysis: Analysis) -> str:
    if not analysis.syncs:
        return ""
    longest = analysis.syncs[0]
    place = longest.frame or longest.operator
    return f", the longest in {longest.call}{f' ({place})' if place else ''}"


def _can_act(switch: str, analysis: Analysis) -> bool:
    """Whether the trace shows something that a switch could act on."""
    shows = analysis.shows
    capability = float(analysis.device["compute_capability"] or 0)
    is_16_bit = analysis.has_accelerator and (analysis.tensor_core or {}).get("yes", 0.0) >= 0.5
    needed = data.table("words")["needs"].get(switch)
    acts = {
        "compile": "graphs" not in shows and "compiled" not in shows,
        "amp": not is_16_bit and (capability >= 7 or not analysis.has_accelerator),  # since Volta
        "fp32_precision": not is_16_bit and capability >= 8,  # TF32 since Ampere
        "pin_memory": any(row.host_memory == "pageable" for row in analysis.transfers),
    }
    return acts.get(switch, needed is None or needed in shows)
