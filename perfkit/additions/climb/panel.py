"""The page in a notebook. It ships with the recordings; the repository's `docs/climb.py` makes it."""

from IPython.display import HTML

from perfkit import machine
from perfkit.show.html import frame


def climb() -> HTML:
    """The switches of the article's ladder on a simulated GPU; it needs no kernel once it is shown."""
    text = (machine.shipped("recordings") / "climb.html").read_text(encoding="utf-8")
    return HTML(frame(text, "Climb it yourself", 900))
