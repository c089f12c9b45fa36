"""What is wrong with a file, and which figures it spoils."""

from __future__ import annotations

import numpy as np

from perfkit.trace.columns import Columns
from perfkit.trace.intervals import Ints
from perfkit.trace.link import Links
from perfkit.trace.model import Health
from perfkit.trace.steps import WHOLE, Steps

BREAKDOWN = ["breakdown_us", "mean_us", "exposed_and_hidden_us", "idle"]
DEVICE = [*BREAKDOWN, "gpu_utilization", "est_sm_efficiency", "est_achieved_occupancy", "tensor_core"]
TIMES = ["mean_step_us", *DEVICE]
FEW = 0.01  # share of launches without a kernel that still counts as the edge of the recording


def check(
    links: Links, steps: Steps, dropped: int, truncated: bool, notes: list[str], used_gpu: bool
) -> list[Health]:
    """Banners for one rank; `spoils` names the figures that the analysis then sets to None."""
    found = [Health(code="repaired", severity="warning", message=note) for note in notes if not truncated]
    if truncated:
        message = "the file is cut off or damaged: " + "; ".join(notes)
        found.append(_error("truncated", message + "; events are missing in an unknown number", TIMES))
    if dropped:
        message = f"{dropped} events with impossible values (missing, negative or no number) were left out"
        found.append(Health(code="bad_events", severity="warning", message=message))
    if not steps.marked:
        message = f"no ProfilerStep marks: '{WHOLE}' stands for one step; call profiler.step() to get steps"
        found.append(Health(code="no_steps", severity="info", message=message))
    if steps.empty:
        message = f"steps that repeat or lie inside others were left out: {', '.join(steps.empty[:5])}"
        found.append(Health(code="duplicate_steps", severity="warning", message=message))
    return found + _steps(links, steps) + _device(links, used_gpu)


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
    found = []
    lost = int((~np.isin(columns.correlation[launching], columns.correlation[links.device])).sum())
    if lost:
        message = f"{lost} of {len(launching)} launches have no kernel in the trace"
        if lost > FEW * len(launching):
            remedy = "; profile once, in a fresh process (pytorch#192021)"
            found.append(_error("dropped_kernels", message + remedy, DEVICE))
        else:
            found.append(Health(code="dropped_kernels", severity="warning", message=message))
    tied = links.launch >= 0
    early = columns.start[links.device[tied]] < columns.start[links.launch[tied]]
    if early.any():
        message = f"{int(early.sum())} of {int(tied.sum())} device events start before their launch"
        spoils = ["idle"] if early.mean() > FEW else []
        found.append(Health(code="early_kernels", severity="warning", message=message, spoils=spoils))
    return found


def _launching(columns: Columns, calls: Ints) -> Ints:
    """Runtime rows that must have a kernel: kernel launches with a correlation id, graphs apart."""
    named = columns.name_mask(
        lambda text: "Launch" in text and "Graph" not in text and "HostFunc" not in text
    )
    return calls[named[columns.name[calls]] & (columns.correlation[calls] >= 0)]


def _steps(links: Links, steps: Steps) -> list[Health]:
    """A last step with far fewer device events than the others: the recording ended too early."""
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
