"""What is wrong with a file, and which figures that makes unusable."""

from __future__ import annotations

import re

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
    columns, links, steps, notes = rank.columns, rank.links, rank.steps, "; ".join(rank.notes)
    launching, (launch, tied) = _launching(columns, links.calls), links.tied
    used_gpu = len(launching) > 0 or any(event.device_type == 1 for event in columns.memory)
    lost = int((~np.isin(columns.correlation[launching], columns.correlation[links.device])).sum())
    early = int((columns.start[tied] < columns.start[launch]).sum())
    many_lost, many_early = lost > FEW * len(launching), early > FEW * len(tied)
    short = _short_last_step(links, steps)
    problems: tuple[tuple[object, str, str, str, list[str]], ...] = (
        (rank.simulated, "simulated", "info",
         "this trace is simulated: no kernel ran, its times are predicted"
         + "".join(f"; {name}: {fact[:200]}" for name, fact in (rank.simulated or {}).items()), []),
        (rank.truncated, "truncated", "error",
         f"the file is cut off or damaged: {notes}; an unknown number of events is missing", TIMES),
        (notes and not rank.truncated, "repaired", "warning", notes, []),
        (rank.dropped, "bad_events", "warning",
         f"left out {rank.dropped} events with impossible values (missing, negative, not a number)", []),
        (not steps.marked, "no_steps", "info",
         f"no ProfilerStep marks: '{WHOLE}' stands for one step; call profiler.step() to get steps", []),
        (steps.empty, "duplicate_steps", "warning",
         f"steps that repeat or lie inside others were left out: {', '.join(steps.empty[:5])}", []),
        (short, "short_step", "warning", f"{short}: its end may be missing", []),
        (used_gpu and not rank.has_device, "no_gpu_events", "error",
         "a GPU was used but no GPU event was recorded; profile in a fresh process (pytorch#175790)", DEVICE),
        (lost and rank.has_device, "dropped_kernels", "error" if many_lost else "warning",
         f"{lost} of {len(launching)} launches have no kernel in the trace"
         + "; profile once, in a fresh process (pytorch#192021)" * many_lost, DEVICE if many_lost else []),
        (early, "early_kernels", "warning",
         f"{early} of {len(tied)} device events start before their launch", ["idle"] * many_early),
    )  # fmt: skip
    return [
        Health(code=code, severity=severity, message=message, spoils=spoils)
        for applies, code, severity, message, spoils in problems
        if applies
    ]


def _launching(columns: Columns, calls: Ints) -> Ints:
    """Runtime rows that must have a kernel: launches with a correlation id, except of graphs."""
    named = columns.named(calls, lambda text: "Launch" in text and not re.search("Graph|HostFunc", text))
    return named[columns.correlation[named] >= 0]


def _short_last_step(links: Links, steps: Steps) -> str:
    """What shows that the recording ended too early: a last step with far fewer device events; else empty."""
    launch, _ = links.tied
    if len(steps.names) < 2 or not len(launch) or not steps.marked:
        return ""
    at = np.searchsorted(steps.host_start, links.columns.start[launch], "right") - 1
    *before, last = np.bincount(at[at >= 0], minlength=len(steps.names)).tolist()
    usual = np.median(before)
    if last >= 0.8 * usual:
        return ""
    return f"{steps.names[-1]} has {last} device events, the steps before it {int(usual)}"
