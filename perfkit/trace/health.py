"""What is wrong with a file, and which figures that makes unusable."""

from __future__ import annotations

import numpy as np

from perfkit.trace.columns import Columns
from perfkit.trace.intervals import Ints
from perfkit.trace.link import Links
from perfkit.trace.model import Health
from perfkit.trace.rank import Rank
from perfkit.trace.steps import WHOLE, Steps

BREAKDOWN = ["breakdown_us", "mean_us", "exposed_and_hidden_us", "idle"]
DEVICE = [*BREAKDOWN, "gpu_utilization", "est_sm_efficiency", "est_achieved_occupancy", "tensor_core"]
TIMES = ["mean_step_us", *DEVICE]
FEW = 0.01  # share of launches without a kernel that the edges of the recording explain


def check(rank: Rank) -> list[Health]:
    """Banners for one rank; `spoils` names the figures that the analysis then sets to None."""
    steps, notes = rank.steps, "; ".join(rank.notes)
    used_gpu = any(event.device_type == 1 for event in rank.columns.memory)
    banners = []
    if rank.truncated:
        message = f"the file is cut off or damaged: {notes}; an unknown number of events is missing"
        banners.append(_error("truncated", message, TIMES))
    elif notes:
        banners.append(Health(code="repaired", severity="warning", message=notes))
    if rank.dropped:
        message = f"left out {rank.dropped} events with impossible values (missing, negative, not a number)"
        banners.append(Health(code="bad_events", severity="warning", message=message))
    if not steps.marked:
        message = f"no ProfilerStep marks: '{WHOLE}' stands for one step; call profiler.step() to get steps"
        banners.append(Health(code="no_steps", severity="info", message=message))
    if steps.empty:
        message = f"steps that repeat or lie inside others were left out: {', '.join(steps.empty[:5])}"
        banners.append(Health(code="duplicate_steps", severity="warning", message=message))
    return banners + _steps(rank.links, steps) + _device(rank.links, used_gpu)


def _error(code: str, message: str, spoils: list[str]) -> Health:
    return Health(code=code, severity="error", message=message, spoils=spoils)


def _device(links: Links, used_gpu: bool) -> list[Health]:
    columns = links.columns
    launching = _launching(columns, links.calls)
    if not len(links.device):
        if not len(launching) and not used_gpu:
            return []
        message = "a GPU was used but no GPU event was recorded; profile in a fresh process (pytorch#175790)"
        return [_error("no_gpu_events", message, DEVICE)]
    banners = []
    lost = int((~np.isin(columns.correlation[launching], columns.correlation[links.device])).sum())
    if lost:
        message = f"{lost} of {len(launching)} launches have no kernel in the trace"
        if lost > FEW * len(launching):
            remedy = "; profile once, in a fresh process (pytorch#192021)"
            banners.append(_error("dropped_kernels", message + remedy, DEVICE))
        else:
            banners.append(Health(code="dropped_kernels", severity="warning", message=message))
    tied = links.launch >= 0
    early = columns.start[links.device[tied]] < columns.start[links.launch[tied]]
    if early.any():
        message = f"{int(early.sum())} of {int(tied.sum())} device events start before their launch"
        spoils = ["idle"] if early.mean() > FEW else []
        banners.append(Health(code="early_kernels", severity="warning", message=message, spoils=spoils))
    return banners


def _launching(columns: Columns, calls: Ints) -> Ints:
    """Runtime rows that must have a kernel: launches with a correlation id, except of graphs."""
    named = columns.name_mask(
        lambda text: "Launch" in text and "Graph" not in text and "HostFunc" not in text
    )
    return calls[named[columns.name[calls]] & (columns.correlation[calls] >= 0)]


def _steps(links: Links, steps: Steps) -> list[Health]:
    """Whether the last step has far fewer device events than the others: the recording ended too early."""
    tied = links.launch >= 0
    if len(steps.names) < 2 or not tied.any() or not steps.marked:
        return []
    at = np.searchsorted(steps.host_start, links.columns.start[links.launch[tied]], "right") - 1
    count = np.bincount(at[at >= 0], minlength=len(steps.names))
    if count[-1] >= 0.8 * np.median(count[:-1]):
        return []
    message = (
        f"{steps.names[-1]} has {count[-1]} device events, the steps before it {int(np.median(count[:-1]))}"
    )
    return [Health(code="short_step", severity="warning", message=message + ": its end may be missing")]
