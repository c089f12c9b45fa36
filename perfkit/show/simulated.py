"""How a simulated value is labelled: the one place that says so in cells, axes, figures and sentences.

A simulated rate is `~1,250 ±15% sim.`: about this much, within the model's error, and simulated. Other values
have the `~` alone.
"""

from collections.abc import Sequence

from perfkit.results.run import Run
from perfkit.results.stats import Estimate
from perfkit.results.store import Entry
from perfkit.show import units

MARK = "sim."
"""After a rate, which people copy."""
LEGEND = "~ simulated, ± the model's error"
LOSSES = "No losses: there are no numbers on a simulated GPU."


def no_parity(runs: Sequence[Run]) -> str:
    """Why there is no parity check; empty for measured runs."""
    return "Parity: not computed, as there are no numbers on a simulated device." if any_of(runs) else ""


def any_of(runs: Sequence[Run]) -> bool:
    """Whether there is a simulated run among these."""
    return any(run.simulated for run in runs)


def cell(run: Run | Entry, text: str, band: float | None = None, mark: str = "") -> str:
    """A value of a run for a cell; `band` is its error, as a fraction. Of a measured run, the text alone."""
    if not run.simulated or text == units.NOT_AVAILABLE:
        return text
    error = f" ±{units.percent(band)}" if band else ""
    return f"~{text}{error} {mark}".rstrip()


def estimate(run: Run | Entry, value: Estimate | None) -> str:
    """A rate with its interval; of a simulated run, with the model's error and the scatter together."""
    if value is None or not run.simulated:
        return units.interval(value)
    band = max(value.high / value.value, value.value / value.low) - 1
    return cell(run, units.number(value.value), band, MARK)


def step_time(run: Run) -> str:
    """Time of a step: a median with its interval, or simulated with the model's error."""
    step = run.step_s
    if step is None or not run.simulated:
        return units.duration_interval(step)
    return cell(run, units.duration(step.value), run.simulated.band)


def memory(run: Run, text: str) -> str:
    """Bytes as text."""
    return cell(run, text, run.simulated.memory_band) if run.simulated else text


def axis(text: str, runs: Sequence[Run]) -> str:
    """What an axis shows."""
    return f"simulated {text}" if any_of(runs) else text


def device(run: Run) -> str:
    """The device of a run, for a figure's title."""
    return f"simulated {run.simulated.gpu}" if run.simulated else run.device


def notices(runs: Sequence[Run]) -> list[str]:
    """What a reader must know before any number."""
    first = next((run for run in runs if run.simulated), None)
    if first is None or not first.simulated:
        return []
    known = first.simulated
    return [
        f"Simulated {known.gpu}: no kernel ran. Times of kernels and memory come from a model (version "
        f"{known.model}, constants {known.constants}); loader, copies and launches are computed for the "
        f"{first.facts.get('host', known.host)}. Values are ~predicted ±the errors that the model made on "
        "published figures; there are no losses."
    ]
