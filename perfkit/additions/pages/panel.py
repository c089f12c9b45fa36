"""The pages in a notebook: `pipeline.html`, and the one that `docs/climb.py` of the repository makes."""

from pathlib import Path

from IPython.display import HTML

from perfkit import machine
from perfkit.show.html import frame


def pipeline() -> HTML:
    """A training loop as two queues, with knobs; it needs no kernel once it is shown."""
    text = Path(__file__).with_name("pipeline.html").read_text(encoding="utf-8")
    return HTML(frame(text, "The pipeline of a training step", 640))


def climb() -> HTML:
    """The switches of the article's ladder on a simulated GPU; it needs no kernel once it is shown."""
    text = (machine.shipped("recordings") / "climb.html").read_text(encoding="utf-8")
    return HTML(frame(text, "Climb it yourself", 900))
