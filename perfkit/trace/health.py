"""What is wrong with a file, and which figures that makes unusable."""

import re
from collections.abc import Iterator, Sequence

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
NEVER = np.iinfo(np.int64).max
FEW = 0.01  # share of launches without a kernel that the edges of the recording explain


def check(rank: Rank) -> list[Health]:
    """Banners for one rank; `spoils` names the figures that the analysis then sets to None."""
    return [*_of_the_file(rank), *_of_the_recording(rank)]


def _banner(code: str, severity: str, message: str, spoils: Sequence[str] = ()) -> Health:
    return Health(code=code, severity=severity, message=message, spoils=list(spoils))


def _of_the_file(rank: Rank) -> Iterator[Health]:
    notes = "; ".join(rank.notes)
    if rank.simulated:
        facts = "".join(f"; {name}: {fact[:200]}" for name, fact in rank.simulated.items())
        message = f"this trace is simulated: no kernel ran, its times are predicted{facts}"
        yield _banner("simulated", "info", message)
    if rank.truncated:
        message = f"the file is cut off or damaged: {notes}; an unknown number of events is missing"
        yield _banner("truncated", "error", message, TIMES)
    elif notes:
        yield _banner("repaired", "warning", notes)
    if rank.dropped:
        reasons = "impossible values (missing, negative, not a number)"
        yield _banner("bad_events", "warning", f"left out {rank.dropped} events with {reasons}")


def _of_the_recording(rank: Rank) -> Iterator[Health]:
    columns, steps = rank.columns, rank.steps
    launching, (launch, tied) = _launching(columns, rank.links.calls), rank.links.tied
    without = launching[~np.isin(columns.correlation[launching], columns.correlation[rank.links.device])]
    early = int((columns.start[tied] < columns.start[launch]).sum())
    used_gpu = len(launching) > 0 or bool((columns.memory[:, 0] == 1).any())
    if not steps.marked:
        message = f"no ProfilerStep marks: '{WHOLE}' stands for one step; call profiler.step() to get steps"
        yield _banner("no_steps", "info", message)
    if steps.empty:
        names = ", ".join(steps.empty[:5])
        yield _banner(
            "duplicate_steps", "warning", f"steps that repeat or lie inside others were left out: {names}"
        )
    if short := _short_last_step(rank.links, steps):
        yield _banner("short_step", "warning", f"{short}: its end may be missing")
    if used_gpu and not rank.has_device:
        message = "a GPU was used but no GPU event was recorded; profile in a fresh process (pytorch#175790)"
        yield _banner("no_gpu_events", "error", message, DEVICE)
    if len(without) and rank.has_device:
        many = len(without) > FEW * len(launching)
        message = f"{len(without)} of {len(launching)} launches have no kernel in the trace"
        if columns.start[without].max() < columns.start[launch].min(initial=NEVER):
            message += ", all before the first recorded kernel: CUPTI before 13.1 loses them when a session "
            message += "starts (pytorch#192021); give the profiler's schedule more warm-up steps"
        elif many:
            message += "; profile once, in a fresh process (pytorch#192021)"
        yield _banner("dropped_kernels", "error" if many else "warning", message, DEVICE if many else [])
    if early:
        message = f"{early} of {len(tied)} device events start before their launch"
        yield _banner("early_kernels", "warning", message, ["idle"] if early > FEW * len(tied) else [])


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
