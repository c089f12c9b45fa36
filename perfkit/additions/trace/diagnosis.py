"""The bottlenecks that an analysis shows, and which switches could act on them."""

from collections.abc import Iterator

from perfkit.additions.trace import data
from perfkit.additions.trace.model import Analysis, Bottleneck

_BOUNDED = 0.95
"""Share of a step beyond which Amdahl's bound is too large to be useful."""
_FEW = 0.05
"""Share of a step up to which first calls do not matter."""
UNKNOWN_DEVICE = {
    *("nothing_recorded", "no_kernels", "no_gpu_events", "operators_on_gpu", "on_mps", "perhaps_mps"),
    "truncated",
}
"""Problems because of which nothing tells on what the operators ran, or how long."""


def diagnose(analysis: Analysis) -> list[Bottleneck]:
    """The bottlenecks whose share of a step reaches their threshold, the longest exposed time first.

    Amdahl's law bounds the gain: without any of the exposed time the step would be 1 / (1 - exposed / step)
    times as fast, so no fix for it can give more. Calls that are only slow once are no part of that step.

    Empty if nothing stands out, or if the trace is too damaged for a diagnosis (see `analysis.health`).
    """
    step_us, rows = analysis.mean_step_us, []
    if not step_us or analysis.mean_us["other"] is None or analysis.is_empty:
        return []
    once = _idle(analysis, "first_calls")
    if once < _FEW * step_us:
        once = 0.0
    of = "the recording" if analysis.is_whole else "a step"
    for name, exposed in _cases(analysis):
        words = data.table("words")["bottleneck"][name]
        length = step_us - once if once and name != "first-calls" else step_us
        share = (exposed or 0.0) / length if length else 0.0
        if share < words["least"]:
            continue
        rest = " without first calls" if length < step_us else ""
        message = words["message"].format(longest=_longest(analysis))
        bottleneck = Bottleneck(
            bottleneck=name.removesuffix("-cpu"),
            message=f"{share:.0%} of {of}{rest}: {message}",
            exposed_us=exposed or 0.0,
            share_of_step=share,
            gain_at_most=1 / (1 - share) if share < _BOUNDED and not words.get("unbounded") else None,
            try_next=[switch for switch in words.get("try", []) if _can_act(switch, analysis)],
        )
        rows.append(bottleneck)
    return sorted(rows, key=lambda row: -row.exposed_us)


def _cases(analysis: Analysis) -> Iterator[tuple[str, float | None]]:
    """The bottlenecks that there could be, and their exposed µs per step."""
    mean = analysis.mean_us
    yield "data-bound", mean["dataloader"]
    if analysis.device["kind"] == "cpu":
        yield "device-bound-cpu", mean["cpu_op"]
        yield "host-bound-cpu", mean["other"]
        yield "communication-bound", mean["communication"]
    if not analysis.has_accelerator:
        return
    yield "first-calls", _idle(analysis, "first_calls")
    yield "host-bound", _idle(analysis, "launch")
    yield "end-of-step", _idle(analysis, "end_of_step")
    yield "late-start", _idle(analysis, "queued")
    yield "unknown", _idle(analysis, "unknown")
    yield "allocation", _idle(analysis, "allocator")
    yield "garbage-collection", _idle(analysis, "gc")
    talk = (analysis.communication or {}).get("exposed_us_per_step")
    yield "communication-bound", talk or _idle(analysis, "collective")
    yield "device-bound", mean["kernel"]
    yield "sync-bound", _idle(analysis, "synchronisation")
    across = [row for row in analysis.transfers if row.direction in ("HtoD", "DtoH")]
    if across:
        copies = min(mean["memcpy"] or 0.0, sum(row.us_per_step for row in across))
        yield "copy-bound", copies + _idle(analysis, "copy")


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
