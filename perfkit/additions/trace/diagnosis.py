"""The bottlenecks that an analysis shows, and which switches could act on them."""

from typing import Any

from perfkit.additions.trace import data
from perfkit.additions.trace.model import Analysis, Bottleneck

_BOUNDED = 0.95
"""Share of a step beyond which Amdahl's bound is too large to be useful."""
_FEW = 0.05
"""Share of a step up to which first calls do not matter."""


def diagnose(analysis: Analysis) -> list[Bottleneck]:
    """The bottlenecks whose share of a step reaches their threshold, the longest exposed time first.

    Amdahl's law bounds the gain: without any of the exposed time the step would be 1 / (1 - exposed / step)
    times as fast, so no fix for it can give more. Calls that are only slow once are no part of that step.

    Empty if nothing stands out, or if the trace is too damaged for a diagnosis (see `analysis.health`).
    """
    step_us, rows = analysis.mean_step_us, []
    if not step_us or analysis.mean_us["other"] is None or analysis.is_empty:
        return []
    device = "accelerator" if analysis.has_accelerator else analysis.device["kind"]
    once = _idle(analysis, "first_calls")
    if once < _FEW * step_us:
        once = 0.0
    of = "the recording" if analysis.is_whole else "a step"
    for name, words in data.table("words")["bottleneck"].items():
        if device not in words["on"]:
            continue
        length = step_us - once if once and name != "first-calls" else step_us
        exposed = _exposed(analysis, words)
        share = exposed / length if length else 0.0
        if share < words["least"]:
            continue
        rest = " without first calls" if length < step_us else ""
        message = words["message"].format(longest=_longest(analysis))
        bottleneck = Bottleneck(
            bottleneck=name.removesuffix("-cpu"),
            message=f"{share:.0%} of {of}{rest}: {message}",
            exposed_us=exposed,
            share_of_step=share,
            gain_at_most=1 / (1 - share) if share < _BOUNDED and not words.get("unbounded") else None,
            try_next=[switch for switch in words.get("try", []) if _can_act(switch, analysis)],
        )
        rows.append(bottleneck)
    return sorted(rows, key=lambda row: -row.exposed_us)


def _exposed(analysis: Analysis, words: dict[str, Any]) -> float:
    """The exposed µs per step of a bottleneck: of a part of the step, and of a cause of idle time."""
    part, cause = words.get("part", ""), words.get("idle", "")
    exposed = analysis.mean_us.get(part) or 0.0
    if part == "memcpy":
        across = [row.us_per_step for row in analysis.transfers if row.direction in ("HtoD", "DtoH")]
        if not across:
            return 0.0
        exposed = min(exposed, sum(across))
    return exposed + _idle(analysis, cause)


def _idle(analysis: Analysis, cause: str) -> float:
    return sum(row.us_per_step for row in analysis.idle if row.cause == cause)


def _longest(analysis: Analysis) -> str:
    """The call in which the host waits longest."""
    runtime = [row for row in analysis.syncs if row.kind == "runtime"]
    if not runtime:
        return ""
    place = runtime[0].frame or runtime[0].operator or "no place"
    return f", the longest in {runtime[0].call} ({place})"


def _can_act(switch: str, analysis: Analysis) -> bool:
    """Whether the trace shows something that a switch acts on."""
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
