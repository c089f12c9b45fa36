"""What a trace is and who is late, in sentences: summary.jinja and ranks.jinja."""

from typing import Any

import jinja2

from perfkit.additions.trace import data
from perfkit.additions.trace.model import Analysis
from perfkit.show import units


def us(value: float | None) -> str:
    """A time in µs, in words."""
    return units.duration(None if value is None else value / 1e6)


def _filled(template: str, **facts: Any) -> str:
    environment = jinja2.Environment(loader=jinja2.PackageLoader("perfkit.additions.trace", "."))
    environment.filters |= {"us": us, "percent": units.percent, "clean": lambda name: units.clean(name, 60)}
    return " ".join(environment.get_template(template).render(**facts).split())


def summary(analysis: Analysis) -> str:
    """What ran, on what, how many steps, how long; then how busy the device is and what stands out."""
    device = data.table("words")["device"].get(analysis.device["kind"], "an unnamed accelerator")
    return _filled("summary.jinja", a=analysis, device=device)


def ranks(analysis: Analysis) -> str:
    """Who is late, how long the others wait, and how long collectives take; empty if nothing communicates."""
    waits = {row.rank: row.waiting_us for row in analysis.ranks if row.waiting_us is not None}
    own = waits.pop(analysis.late_rank, None) if analysis.late_rank is not None else None
    return _filled("ranks.jinja", a=analysis, waits=[*waits.values()], own=own)
