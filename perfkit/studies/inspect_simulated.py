"""What a step on a simulated GPU is made of, from its plan: a trace, memory, kernels, copies and waits."""

from __future__ import annotations

from pathlib import Path

from perfkit.program.recipe import Recipe
from perfkit.results.simulated import THIS_MACHINE
from perfkit.simulate import chrome
from perfkit.simulate.prediction import Prediction
from perfkit.simulate.queue import Bar


def write_trace(path: Path, prediction: Prediction, bars: list[Bar], host: str, step_s: float) -> None:
    """The steps that a queue issued, as a Chrome trace that says what it is."""
    known = prediction.simulated(host, step_s)
    facts = {
        "host": "real: loader, copies and launches took their time here" if host == THIS_MACHINE else host,
        "model": f"version {known.model}, constants {known.constants}",
        "error of samples/s to expect": f"±{known.band:.0%}",
        "recorded kernels": f"{known.recorded:.0%} of the kernel time",
    }
    chrome.write(
        path, prediction.step, prediction.kernels, prediction.gpu, bars, facts, _loader(prediction.recipe)
    )


def _loader(recipe: Recipe) -> str:
    if recipe.device_dataset:
        return ""
    return f"_{'Multi' if recipe.workers else 'Single'}ProcessDataLoaderIter"
