"""Looks inside a step in a notebook, and adds `%%watch` for a cell with a loop."""

import functools
from typing import Unpack
from unittest import mock

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from msgspec.structs import replace

from perfkit import lookup
from perfkit.additions.inside import KernelReport, MemoryReport, looks
from perfkit.additions.shared.looking import Chosen, planned
from perfkit.errors import InvalidValue
from perfkit.notebook.shown import Recipes, Shown, with_line
from perfkit.studies.planning import Where
from perfkit.studies.sources import Progress

_TEXTS = lookup.toml(__package__, "cell")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Registers `%%watch`; called by `%load_ext perfkit`."""
    shell.register_magic_function(functools.partial(_watch_cell, shell), "cell", "watch")  # type: ignore[arg-type]


def _watch_cell(shell: InteractiveShell, line: str, cell: str) -> None:
    """Runs a cell, shows the steps of its loop below the cell's output, then raises the cell's error."""
    from perfkit.additions.inside import loop  # imports torch, so only once it is needed

    shows = dict.fromkeys(("showtraceback", "showsyntaxerror"), mock.DEFAULT)
    with mock.patch.multiple(shell, **shows), loop.observed() as steps:  # the error is raised and shown below
        result = shell.run_cell(cell)
    contents = [*loop.contents(steps), _TEXTS["way"]]
    if not result.success:
        contents = list(loop.contents(steps)) if steps else []
        if "DataLoader worker" in str(result.error_in_exec):
            contents.append(_TEXTS["module"])
    if contents:
        display(Shown(steps, contents))
    result.raise_error()


def memory(
    recipes: Recipes, workload: str | None = None, **where: Unpack[Where]
) -> Shown[list[MemoryReport]]:
    """Shows what holds memory in a step of each recipe; arguments as for `perfkit.profile`. Figure: held."""
    if not recipes:
        raise InvalidValue("no recipe was given", 'Give each a title, such as {"AMP": {"amp": "bf16"}}')
    each = dict[str, Where]()
    for title, changes in recipes.items():
        each[title] = {**where, "settings": {**(where.get("settings") or {}), **changes}}
        planned(workload, None, each[title])  # refused now, not after others were measured

    def measure(progress: Progress) -> list[MemoryReport]:
        measured = {title: looks.memory(workload, None, progress, **own) for title, own in each.items()}
        return [replace(report, recipe=title) for title, report in measured.items()]

    reports = with_line(measure)
    return Shown(reports, looks.memory_sections(reports))


def kernels(
    workload: str | None = None, recipe: Chosen = None, **where: Unpack[Where]
) -> Shown[KernelReport]:
    """Shows roofs, shapes, and a step's share of them; arguments as for `perfkit.profile`."""
    report = with_line(lambda progress: looks.kernels(workload, recipe, progress, **where))
    return Shown(report, looks.kernel_sections(report))
