"""What a trace is and who is late, in sentences: summary.jinja and ranks.jinja."""

from perfkit.additions.trace import data
from perfkit.additions.trace.model import Analysis


def summary(analysis: Analysis) -> str:
    """What ran, on what, how many steps, how long; then how busy the device is and what stands out."""
    device = data.table("words")["device"].get(analysis.device["kind"], "an unnamed accelerator")
    return " ".join(data.filled("summary.jinja", a=analysis, device=device).split())


def ranks(analysis: Analysis) -> str:
    """Who is late, how long the others wait, and how long collectives take; empty if nothing communicates."""
    waits = {row.rank: row.waiting_us for row in analysis.ranks if row.waiting_us is not None}
    own = waits.pop(analysis.late_rank, None) if analysis.late_rank is not None else None
    return " ".join(data.filled("ranks.jinja", a=analysis, waits=[*waits.values()], own=own).split())
