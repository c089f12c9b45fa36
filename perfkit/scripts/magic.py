"""`%load_ext perfkit`, then `%%watch` above a cell with a training loop."""

import contextlib
from collections.abc import Iterator
from typing import Any

from IPython.display import display

from perfkit.notebook.shown import Shown
from perfkit.show.document import Bullets, Content, Section

_WAYS = (
    "Switches are set for scripts: File > Save and Export Notebook As makes one of this notebook.",
    "See what to try: !perfkit watch train.py",
    "Compare it with a switch set: !perfkit compare --script train.py --set amp=bf16",
    "Get the edit of your code: !perfkit patch train.py --set amp=bf16",
)


def load_ipython_extension(shell: Any) -> None:
    """Registers the magic; called by `%load_ext perfkit`."""
    shell.register_magic_function(lambda line, cell: watch(shell, cell), "cell", "watch")


def watch(shell: Any, cell: str) -> None:
    """Runs a cell, shows the steps of its loop below its own output, then raises what the cell raised."""
    from perfkit.scripts import loop  # torch, once a cell is to be run

    with loop.observed() as steps, _without_traceback(shell):
        result = shell.run_cell(cell)
    sections: list[Content] = loop.contents(steps)
    display(Shown(steps, [*sections, Section("To set switches", [Bullets(list(_WAYS))])]))
    result.raise_error()


@contextlib.contextmanager
def _without_traceback(shell: Any) -> Iterator[None]:
    """The shell does not show the error of a cell: it is raised, and shown then."""
    shell.showtraceback = lambda *_, **__: None
    try:
        yield
    finally:
        del shell.showtraceback
