"""`%load_ext perfkit`, then `%%watch` above a cell with a training loop."""

import contextlib
from collections.abc import Iterator
from typing import Any

from IPython.display import display

from perfkit.notebook.shown import Shown

_WAY = (
    "Switches are set for scripts: save this notebook as one (File > Save and Export Notebook As), "
    "then `!perfkit watch train.py` says what to try, "
    "and `!perfkit patch train.py --set amp=bf16` prints the edit."
)


def load_ipython_extension(shell: Any) -> None:
    """Registers the magic; called by `%load_ext perfkit`."""
    shell.register_magic_function(lambda line, cell: watch(shell, cell), "cell", "watch")


def watch(shell: Any, cell: str) -> None:
    """Runs a cell, shows the steps of its loop below its own output, then raises what the cell raised."""
    from perfkit.scripts import loop  # torch, once a cell is to be run

    with loop.observed() as steps, _without_traceback(shell):
        result = shell.run_cell(cell)
    display(Shown(steps, [*loop.contents(steps), _WAY]))
    result.raise_error()


@contextlib.contextmanager
def _without_traceback(shell: Any) -> Iterator[None]:
    """The shell does not show the error of a cell: it is raised, and shown then."""
    shell.showtraceback = lambda *_, **__: None
    try:
        yield
    finally:
        del shell.showtraceback
