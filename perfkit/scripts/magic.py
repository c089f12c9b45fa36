"""`%load_ext perfkit`, then `%%watch` above a cell with a training loop."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from IPython.display import display

from perfkit.errors import InvalidValue
from perfkit.notebook.shown import Shown
from perfkit.scripts import loop, tables
from perfkit.scripts.tracked import Tracked
from perfkit.show.document import Bullets, Content, Section


def load_ipython_extension(shell: Any) -> None:
    """Registers the magic; called by `%load_ext perfkit`."""
    shell.register_magic_function(lambda line, cell: watch(shell, line, cell), "cell", "watch")


def watch(shell: Any, line: str, cell: str) -> None:
    """Runs a cell, observes the steps of its loop, and shows them below what the cell shows.

    Args:
        shell: the kernel's `InteractiveShell`.
        line: a file to save the notebook's code in, as a script; empty for none.
        cell: the code.

    Raises:
        InvalidValue: that file exists, or cannot be written.
        Exception: what the cell raises, after its steps are shown.
    """
    if line.strip():
        save(Path(line.strip()), [*shell.history_manager.input_hist_raw[:-1], cell])
    with loop.observed() as tracked, _without_traceback(shell):
        result = shell.run_cell(cell)
    display(Shown(tracked, sections(tracked)))
    result.raise_error()


@contextlib.contextmanager
def _without_traceback(shell: Any) -> Iterator[None]:
    """The shell does not show the error of a cell: it is raised, and shown then."""
    shell.showtraceback = lambda *_, **__: None
    try:
        yield
    finally:
        del shell.showtraceback


def sections(tracked: Tracked) -> list[Content]:
    """What was seen, and how to set switches."""
    ways = [
        "Save the cells that you have run as a script: %%watch train.py above this one",
        "See what to try: !perfkit watch train.py",
        "Compare it with a switch set: !perfkit compare --script train.py --set amp=bf16",
        "Get the edit of your code: !perfkit patch train.py --set amp=bf16",
    ]
    reason = (
        "Switches cannot be set for a cell: its model and loader are in this kernel, so they cannot be made "
        "again with other settings, and no second process can train beside it. A script can be started twice:"
    )
    return [*tables.tracked(tracked), Section("To set switches", [reason, Bullets(ways)])]


def save(path: Path, cells: list[str]) -> None:
    """Writes cells as one script, without their magics and shell commands.

    Raises:
        InvalidValue: the file exists, or is not a Python file that can be written.
    """
    if path.exists() or path.suffix != ".py" or not path.absolute().parent.is_dir():
        raise InvalidValue(
            f"cannot save the cells as '{path}'", "Name a new .py file in a folder that exists"
        )
    lines = [[line for line in cell.splitlines() if not line.startswith(("%", "!"))] for cell in cells]
    texts = filter(str.strip, map("\n".join, lines))
    path.write_text("\n\n".join(texts) + "\n", encoding="utf-8")
