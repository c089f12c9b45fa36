"""`perfkit runs`: lists what is stored."""

from typing import Annotated

import typer

from perfkit.cli.options import stored
from perfkit.show import tables, terminal


def runs(limit: Annotated[int, typer.Option(min=1, help="how many, newest first")] = 20) -> None:
    """Lists the stored runs, newest first."""
    with stored() as store:
        terminal.show([tables.stored(store.history(limit))])
