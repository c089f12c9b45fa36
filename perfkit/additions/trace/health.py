"""Finds what is wrong with a trace, or must be known before its figures are read."""

from collections.abc import Iterator

import numpy as np

from perfkit.additions.trace import data
from perfkit.additions.trace.data import us
from perfkit.additions.trace.events import COPIES, KERNELS, Kind
from perfkit.additions.trace.model import Health
from perfkit.additions.trace.table import Trace
from perfkit.show import units

_FEW = 0.01  # launches without a kernel: a smaller share is explained by the edges of the recording


def said(code: str, **facts: object) -> Health:
    """The problem with this code, with its message from words.toml filled in."""
    words = data.table("words")["health"][code]
    spoils = list[str]()
    for figure in words.get("spoils", []):
        spoils += data.table("words")["device_figures"]["names"] if figure == "device" else [figure]
    return Health(code, words["severity"], words["message"].format(**facts), spoils)


def check(trace: Trace, shows: list[str]) -> list[Health]:
    """The problems of a trace; `shows` is its `evidence`. The figures that they spoil become None later."""
    problems = [*_file(trace), *_steps(trace)]
    if not trace.file.truncated:  # else what seems to be missing may only be cut off
        problems += [*_recorded(trace, shows), *_launches(trace)]
    return problems


def _file(trace: Trace) -> Iterator[Health]:
    if basis := trace.simulated:
        yield said("simulated", facts="".join(f"; {name}: {fact[:200]}" for name, fact in basis.items()))
    if trace.file.truncated:
        yield said("truncated")
    if trace.file.documents > 1:
        yield said("several_documents")
    count = max(trace.processes(Kind.STEP), trace.processes(Kind.CPU_OP))
    if count > 1:
        yield said("several_processes", count=count)
    counts = {
        "bad_events": (trace.file.dropped, "event"),
        "repeated_events": (trace.repeated, "event"),
        "same_correlation": (len(trace.ambiguous), "device event"),
        "python_frames": (len(trace.rows(Kind.PYTHON)), "Python frame"),
    }
    for code, (number, noun) in counts.items():
        if number:
            yield said(code, count=units.plural(number, noun))


def _steps(trace: Trace) -> Iterator[Health]:
    marks = len(trace.rows(Kind.STEP))
    steps = trace.steps
    if steps.are == "whole recording":
        yield said("no_steps")
    elif steps.are == "inferred":
        before, after = us(steps.start[0] / 1e3), us((trace.table.end.max() - steps.end[-1]) / 1e3)
        yield said("inferred_steps", count=len(steps.names), source=steps.source, before=before, after=after)
    elif left := marks - len(steps.names):
        yield said("duplicate_steps", left=left, count=marks)
    if steps.behind > 0.05 * steps.total:
        yield said("device_behind", time=us(steps.behind / 1e3))


def _recorded(trace: Trace, shows: list[str]) -> Iterator[Health]:
    """Reports what was not recorded, and why."""
    listed = trace.devices
    name = units.clean(listed[0].name or "unnamed", 60) if listed else ""
    if len(trace.device):
        count = trace.processes(*KERNELS, *COPIES)
        if count > 1:
            yield said("several_devices", count=count)
        if "host" not in shows:
            yield said("no_host_events")
    elif not len(trace.ops):
        yield said("nothing_recorded", time=us(trace.table.end.max() / 1e3))
    elif "on mps" in shows:
        yield said("on_mps")
    elif "on gpu" in shows:
        yield said("operators_on_gpu")
    elif listed and "on cpu" in shows:
        yield said("on_cpu_beside_gpu", name=name)
    elif listed:
        yield said("no_kernels", name=name)
    elif listed is not None and "on cpu" not in shows:
        yield said("perhaps_mps")


def _launches(trace: Trace) -> Iterator[Health]:
    start, ids, tied = trace.table.start, trace.table.correlation, trace.launched
    launching = trace.matching(trace.calls, "^(?!.*(Graph|HostFunc)).*Launch")
    launching = launching[ids[launching] >= 0]
    without = len(launching) - int(np.isin(ids[launching], ids[trace.device]).sum())
    if without and not len(trace.device):
        yield said("no_gpu_events")
    elif without:
        why = "; profile once, in a new process, after more warm-up steps (pytorch#192021)"
        if trace.file.dropped:
            why = ", perhaps because events were left out"
        few = "few_" if without <= _FEW * len(launching) else ""
        yield said(f"{few}dropped_kernels", without=without, count=len(launching), why=why)
    if early := int((start[tied] < start[trace.launch[tied]]).sum()):
        few = "few_" if early <= _FEW * len(tied) else ""
        yield said(f"{few}early_kernels", early=early, count=len(tied))
