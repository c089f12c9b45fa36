"""What a person can do about a message: at most one button."""

from __future__ import annotations

import re
from collections.abc import Callable

from perfkit import machine
from perfkit.notebook.layout import Action
from perfkit.notebook.where import Chooser

_NEEDS_GPU = re.compile(r"needs? (a|an|one) (CUDA|GPU)|formats? of CUDA|CUDA graphs|compute in bfloat16")
_NEEDS_COMPILER = re.compile(r"finds? no compiler|compiler is missing|no C(\+\+)? compiler")


def find(
    reason: str, tell: Callable[[str], None], where: Chooser | None = None,
    show_diff: Callable[[], None] | None = None,
) -> Action | None:  # fmt: skip
    """The action for a reason; None where there is nothing to press.

    Args:
        reason: why something failed or cannot act.
        tell: shows a line in the panel.
        where: the chooser of the panel, if it has one.
        show_diff: shows what would change in the script, here and on a GPU.
    """
    if _NEEDS_COMPILER.search(reason):
        device = where.plan.device if where else "cpu"
        return Action("Install a compiler", lambda: tell(_install(device)))
    if _NEEDS_GPU.search(reason):
        simulate = where.simulation() if where else None
        return simulate or (Action("Show the CUDA diff", show_diff) if show_diff else None)
    return None


def _install(device: str) -> str:
    problem, _, command = machine.compiler_problem(device).partition(": ")
    how = f"in a terminal: {command or problem}" if problem else "there is one now"
    return f"{how}; then restart the kernel"
