"""The pages in a notebook: `pipeline.html`, and the one that `docs/climb.py` of the repository makes."""

from pathlib import Path

import jinja2
from IPython.display import HTML

from perfkit import machine


def pipeline() -> HTML:
    """A training loop as two queues, with knobs; it needs no kernel once it is shown."""
    text = Path(__file__).with_name("pipeline.html").read_text(encoding="utf-8")
    return _framed(text, "The pipeline of a training step", 640)


def climb() -> HTML:
    """The switches of the article's ladder on a simulated GPU; it needs no kernel once it is shown."""
    text = (machine.shipped("recordings") / "climb.html").read_text(encoding="utf-8")
    return _framed(text, "Climb it yourself", 900)


def _framed(page: str, title: str, height: int) -> HTML:
    """A page with its own script, in a sandbox; `height` in pixels."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    template = jinja2.Environment(loader=loader, autoescape=True).get_template("frame.jinja")
    return HTML(template.render(page=page, title=title, height=height))
