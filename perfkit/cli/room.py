"""The command that opens a room: a board for a workshop."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Annotated

import typer

from perfkit import machine
from perfkit.cli import app as cli
from perfkit.errors import InvalidValue

_EVERYWHERE = ("0.0.0.0", "::")


@cli.command(cli.MACHINE)
def room(
    host: Annotated[
        str, typer.Option(help="address to listen at; 0.0.0.0: every learner's machine can reach it")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one")] = 8765,
    token: Annotated[
        str | None,
        typer.Option(help="that learners need, 8 characters or more (default: the state's, or new)"),
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="the file of its rows; a restart goes on with it")
    ] = None,
) -> None:
    """Opens a board for a workshop: learners join it with pk.join. Ctrl-C ends it."""
    try:
        from perfkit.room import board, server
    except ModuleNotFoundError as missing:
        raise InvalidValue(f"the room needs {missing.name}", 'pip install "perfkit[notebook]"') from None
    if token is not None and len(token) < 8:
        raise InvalidValue(f"the token has {len(token)} characters", "Give 8 or more, or leave it out")
    rows = board.Board(state or machine.runs_folder() / "room.json", token)

    def started(bound: int) -> None:
        shown = server.address_on_network() if host in _EVERYWHERE else host
        url = f"http://{f'[{shown}]' if ':' in shown else shown}:{bound}"
        typer.echo(f"the board:    {url}/?token={rows.token}")
        typer.echo(f'to join:      pk.join("{url}", "{rows.token}", name="anything")')
        typer.echo(f"its rows are in {rows.path} ({len(rows.entries)} now); Ctrl-C ends it")

    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(server.serve(rows, host, port, started))
    typer.echo(f"the room is closed; {rows.path} keeps its {len(rows.entries)} rows")
