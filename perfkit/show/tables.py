"""The table of a session as plain text cells: the same for the command line, the notebooks and the report."""

from __future__ import annotations

from collections.abc import Sequence

from perfkit.results.run import Run
from perfkit.show import results, sentences, units

COLUMNS = (
    "stage",
    "samples/s",
    "× previous",
    "× baseline",
    "waits for data",
    "step time",
    "pipeline efficiency",
    "peak memory",
    "bytes/sample",
    "note",
)


def table(runs: Sequence[Run]) -> list[list[str]]:
    """One row a run, in the order of `COLUMNS`."""
    return [row(run) for run in runs]


def row(run: Run) -> list[str]:
    """The cells of a run; what was not measured is `n/a`, and the note says why."""
    rate, step = results.rate(run), results.step_s(run)
    share, efficiency = results.wait_share(run), results.efficiency(run)
    missing = units.NOT_AVAILABLE
    return [
        sentences.name(run),
        units.interval(rate) if rate else sentences.outcome(run).partition(":")[0],
        against(run, "previous"),
        against(run, "baseline"),
        missing if share is None else units.percent(share),
        units.duration_interval(step) if step else missing,
        missing if efficiency is None else units.percent(efficiency),
        memory(run),
        bytes_per_sample(run),
        note(run),
    ]


def against(run: Run, role: str) -> str:
    """`1.34× (1.28–1.41) faster`; of a stage with nothing before it, a dash."""
    found = results.speedup(run, role)
    if found:
        return f"{units.ratio(found)} {found.verdict}"
    return "–" if results.rate(run) and not run.pairings else units.NOT_AVAILABLE


def memory(run: Run) -> str:
    """Peak of the device's allocator, or of the training process where there is no accelerator."""
    if run.status != "ok" or run.peak_memory_bytes is None:
        return units.NOT_AVAILABLE
    return units.size(run.peak_memory_bytes)


def bytes_per_sample(run: Run) -> str:
    """What a sample has in the loader's batch; where that is not what crosses to the device, both."""
    batch, crossing = run.batch_bytes_per_sample, run.h2d_bytes_per_sample
    if run.status != "ok" or batch is None:
        return units.NOT_AVAILABLE
    return f"{batch:,} B" if crossing in (None, batch) else f"{batch:,} B ({crossing:,} B cross)"


def note(run: Run) -> str:
    """Why a row has no numbers, or how many warnings it has."""
    if sentences.outcome(run):
        return sentences.outcome(run)
    count = len(run.warnings)
    return f"{count} warning{'s' if count > 1 else ''}" if count else ""
