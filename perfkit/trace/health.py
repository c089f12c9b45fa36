"""What is wrong with a file, and which figures that makes unusable."""

from collections.abc import Iterator

import numpy as np

from perfkit.trace.model import Health
from perfkit.trace.rank import WHOLE, Rank

BREAKDOWN = ["breakdown_us", "mean_us", "exposed_and_hidden_us", "idle"]
DEVICE = [*BREAKDOWN, "gpu_utilization", "est_sm_efficiency", "est_achieved_occupancy", "tensor_core"]
FEW = 0.01
"""A share of launches without a kernel that the edges of the recording explain."""


def check(rank: Rank) -> list[Health]:
    """Problems of one rank; `spoils` names the figures that the analysis then sets to None."""
    problems = (*_file(rank), *_recording(rank))
    return [
        Health(code=code, severity=severity, message=message, spoils=spoils)
        for code, severity, message, spoils in problems
    ]


def _file(rank: Rank) -> Iterator[tuple[str, str, str, list[str]]]:
    file = rank.file
    if file.head.simulated:
        facts = "".join(f"; {name}: {fact[:200]}" for name, fact in file.head.simulated.items())
        message = f"this trace is simulated: no kernel ran, its times are predicted{facts}"
        yield "simulated", "info", message, []
    if file.truncated:
        message = f"the file is cut off or damaged: {file.truncated}; an unknown number of events is missing"
        yield "truncated", "error", message, ["mean_step_us", *DEVICE]
    elif file.repaired:
        yield "repaired", "warning", "invalid escapes, bytes or numbers were repaired", []
    if file.dropped:
        reasons = "impossible values (missing, negative, not a number)"
        yield "bad_events", "warning", f"left out {file.dropped} events with {reasons}", []


def _recording(rank: Rank) -> Iterator[tuple[str, str, str, list[str]]]:
    steps, start, ids = rank.steps, rank.table.start, rank.table.correlation
    if not steps.marked:
        message = f"no ProfilerStep marks: '{WHOLE}' stands for one step; call profiler.step() to get steps"
        yield "no_steps", "info", message, []
    if steps.empty:
        names = ", ".join(steps.empty[:5])
        message = f"steps that repeat or lie inside others were left out: {names}"
        yield "duplicate_steps", "warning", message, []
    launching = rank.matching(rank.calls, "^(?!.*(Graph|HostFunc)).*Launch")
    launching = launching[ids[launching] >= 0]
    if not len(rank.device):
        if len(launching) or (rank.memory[:, 0] == 1).any():
            message = (
                "a GPU was used but no GPU event was recorded; profile in a fresh process (pytorch#175790)"
            )
            yield "no_gpu_events", "error", message, DEVICE
        return
    without = launching[~np.isin(ids[launching], ids[rank.device])]
    if len(without):
        many = len(without) > FEW * len(launching)
        message = f"{len(without)} of {len(launching)} launches have no kernel in the trace"
        recorded = start[rank.launch[rank.launched]]
        if start[without].max() < recorded.min(initial=np.iinfo(np.int64).max):
            message += ", all before the first recorded kernel: CUPTI before 13.1 loses them when a session "
            message += "starts (pytorch#192021); give the profiler's schedule more warm-up steps"
        elif many:
            message += "; profile once, in a fresh process (pytorch#192021)"
        yield "dropped_kernels", "error" if many else "warning", message, DEVICE if many else []
    tied = rank.launched
    early = int((start[tied] < start[rank.launch[tied]]).sum())
    if early:
        message = f"{early} of {len(tied)} device events start before their launch"
        yield "early_kernels", "warning", message, ["idle"] if early > FEW * len(tied) else []
