"""Shares a panel's prediction and result with the board of a workshop (`perfkit room`).

Which room was joined is kept in a file, as every chapter has a kernel of its own.
"""

from __future__ import annotations

import contextlib
import html
import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from http.client import HTTPException
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from IPython.display import Markdown

from perfkit import machine, workloads
from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import optimization
from perfkit.results import recordings
from perfkit.results import run as runs
from perfkit.room.shared import Shared, slim
from perfkit.show import results

if TYPE_CHECKING:
    from perfkit.notebook.ladder import LadderPanel

_CLIENT = uuid.uuid4().hex


class Room(msgspec.Struct, frozen=True):
    """A room as a learner knows it."""

    address: str
    token: str
    name: str
    client: str
    """A random number: two learners of one name stay apart, and one stays the same in every chapter."""


def _file() -> Path:
    return machine.runs_folder() / "joined.json"


def joined() -> Room | None:
    """The room that was joined, in this notebook or another."""
    with contextlib.suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(_file().read_bytes(), type=Room)
    return None


def join(url: str, token: str = "", name: str = "") -> Markdown:
    """Joins the room of a workshop: panels made from now on, in all notebooks, have a button "Share".

    Args:
        url: the room's, as `perfkit room` prints it; it may hold the token.
        token: the room's.
        name: to stand on the board, at most 40 characters; anything will do.

    Raises:
        InvalidValue: the room cannot be reached, or refuses the token.
    """
    room = _room(url, token, name)
    _ask(room, "/board")
    machine.runs_folder().mkdir(parents=True, exist_ok=True)
    machine.write_atomically(_file(), msgspec.json.encode(room))
    return _said(f"You are {room.name} in the room at", room, "`pk.leave()` takes its buttons away again.")


def leave() -> None:
    """Leaves the room: panels made from now on have no button "Share"."""
    _file().unlink(missing_ok=True)


def share(panel: LadderPanel, url: str = "", token: str = "", name: str = "") -> Markdown:
    """Puts a panel's prediction and its newest result on the board of a room, as its button "Share" does.

    Share a prediction before you press Run, and the same panel again afterwards: its row is completed. The
    room gets the stage, your prediction, the measured rounds and the description of the machine.

    Args:
        panel: of a stage, or of a ladder, whose last stage is shared, compared with the plain loop.
        url: as for `join`; without it, of the room that was joined.
        token: the room's.
        name: as for `join`.

    Raises:
        InvalidValue: there is nothing to share, or the room cannot be reached or refuses it.
    """
    room = _room(url, token, name) if url else joined()
    if room is None:
        raise InvalidValue("no room was joined", "pk.join(url) joins one; `perfkit room` prints the call")
    _ask(room, "/share", msgspec.json.encode(_shared(panel, room)))
    return _said("Shared with", room)


def _said(text: str, room: Room, more: str = "") -> Markdown:
    address = html.escape(room.address)
    return Markdown(f"{text} [{address}]({address}). {more}")


def _room(url: str, token: str, name: str) -> Room:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidValue(
            f"'{url}' is not the address of a room", "Copy what `perfkit room` printed: http://…"
        )
    before = joined()
    client = before.client if before else _CLIENT
    given = urllib.parse.parse_qs(parts.query).get("token", [""])[0]
    name = (name or f"learner {client[:4]}")[:40]
    return Room(f"{parts.scheme}://{parts.netloc}", token or given, name, client)


def _ask(room: Room, path: str, body: bytes | None = None) -> None:
    """Sends a request to a room.

    Raises:
        InvalidValue: it cannot be reached, or refuses.
    """
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {room.token}"}
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the room is on this network
    try:
        direct.open(urllib.request.Request(room.address + path, body, headers), timeout=10).close()
    except urllib.error.HTTPError as refusal:
        sentence = refusal.reason
        with contextlib.suppress(ValueError, KeyError, TypeError):
            sentence = str(json.loads(refusal.read(10_000))["error"])
        raise InvalidValue(f"the room at {room.address} refuses: {sentence}") from None
    except (OSError, HTTPException) as problem:
        what = f"the room at {room.address} cannot be reached: {getattr(problem, 'reason', problem)}"
        raise InvalidValue(what, "Check its address, and that it is open") from None


def _shared(panel: LadderPanel, room: Room) -> Shared:
    last = results.stages(panel.runs)[-1] if panel.runs else None
    if last is None and panel.prediction is None:
        raise InvalidValue(
            "this panel has neither a prediction nor a result", "Predict first, or run it, then share it"
        )
    plan = panel.plan
    stage = last.stage if last else plan.stages[-1]
    title = last.title if last else optimization(stage).title
    facts = recordings.find(plan.recorded).provenance.machine if plan.recorded else machine.facts()
    return Shared(
        client=room.client, name=room.name, stage=stage, title=title or stage, device=plan.device,
        workload=last.workload if last else workloads.reference(plan.workload),
        machine=machine.describe(facts)[:200], prediction=panel.prediction,
        confidence=panel.confidence and panel.confidence / 100,
        role="previous" if panel.from_below else "baseline",
        run=msgspec.Raw(runs.encode(slim(last)) if last else b"null"),
    )  # fmt: skip
