"""The pipeline of a training step in a notebook; `pipeline.html` is a page by itself."""

from pathlib import Path

from IPython.display import HTML

from perfkit.show.html import frame


def pipeline() -> HTML:
    """A training loop as two queues, with knobs; it needs no kernel once it is shown."""
    text = Path(__file__).with_name("pipeline.html").read_text(encoding="utf-8")
    return HTML(frame(text, "The pipeline of a training step", 640))
