"""`%load_ext perfkit`, then `%%watch` above a cell with a training loop."""

from __future__ import annotations

import ast
import types
from typing import Any

from IPython.display import display

from perfkit import loop
from perfkit.notebook.shown import Shown
from perfkit.results.tracked import Tracked
from perfkit.show import tables_script
from perfkit.show.document import Bullets, Content, Section


def load_ipython_extension(shell: Any) -> None:
    """Registers the magic; called by `%load_ext perfkit`."""
    shell.register_magic_function(lambda line, cell: watch(shell, cell), "cell", "watch")


def watch(shell: Any, cell: str) -> None:
    """Runs a cell, observes the steps of its loop, and shows them below what the cell shows.

    Args:
        shell: the kernel's `InteractiveShell`.
        cell: its code.
    """
    before = names_from_before(cell, shell.user_ns)
    with loop.observed() as tracked:
        shell.run_cell(cell)
    display(Shown(tracked, sections(tracked, before)))


def sections(tracked: Tracked, before: list[str]) -> list[Content]:
    """What was seen, and how to set switches.

    Args:
        tracked: the steps.
        before: variables that the cell has from other cells.
    """
    objects = ", ".join(before) if before else "what the cell makes"
    ways = [
        "Write the notebook's code into a file: %history -f train.py",
        "See what to try: !perfkit watch train.py",
        "Compare it with a switch set: !perfkit compare --script train.py --set amp=bf16",
        "Get the edit of your code: !perfkit patch train.py --set amp=bf16",
    ]
    reason = (
        f"Switches cannot be set for a cell: its objects ({objects}) are in this kernel, so they cannot be "
        "made again with other settings, and no second process can train beside it. A script can be started "
        "twice:"
    )
    return [*tables_script.tracked(tracked), Section("To set switches", [reason, Bullets(ways)])]


def names_from_before(cell: str, known: dict[str, Any]) -> list[str]:
    """The variables of a cell that other cells have made, modules, functions and classes apart."""
    try:
        tree = ast.parse(cell)
    except SyntaxError:  # magics and shell commands: the kernel reads them
        return []
    used = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    kinds = (types.ModuleType, types.FunctionType, type)
    return [
        name
        for name in dict.fromkeys(used)
        if name in known and not name.startswith("_") and not isinstance(known[name], kinds)
    ]  # fmt: skip
