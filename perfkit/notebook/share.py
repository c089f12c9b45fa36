"""Shares a panel's prediction and result with the board of a workshop (`perfkit room`)."""

from __future__ import annotations

import html
import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from http.client import HTTPException

import msgspec
from IPython.display import Markdown

from perfkit import machine, workloads
from perfkit.errors import InvalidValue
from perfkit.ladder.catalogue import optimization
from perfkit.notebook.ladder import LadderPanel
from perfkit.results import recordings
from perfkit.results import run as runs
from perfkit.room.shared import Shared, slim
from perfkit.show import results

_CLIENT = uuid.uuid4().hex


def share(panel: LadderPanel, url: str, token: str = "", name: str = "") -> Markdown:
    """Puts a panel's prediction and its newest result on the board of a room.

    Share a prediction before you press Run, and the same panel again afterwards: its row is completed. The
    room gets the stage, your prediction, the measured rounds and the description of the machine.

    Args:
        panel: of a stage, or of a ladder, whose last stage is shared, compared with the plain loop.
        url: the room's, as `perfkit room` prints it; it may hold the token.
        token: the room's.
        name: to stand on the board, at most 40 characters; anything will do.

    Raises:
        InvalidValue: there is nothing to share, or the room cannot be reached or refuses it.
    """
    address, token = _address(url, token)
    body = msgspec.json.encode(_shared(panel, name or f"learner {_CLIENT[:4]}"))
    request = urllib.request.Request(
        f"{address}/share", body, {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    )
    status, sentence = _post(request)
    if status != 200:
        remedy = "" if status else "Check its address, and that it is open"
        raise InvalidValue(f"the room at {address} did not take it: {sentence}", remedy)
    return Markdown(f"Shared with [{html.escape(address)}]({html.escape(address)}).")


def _post(request: urllib.request.Request) -> tuple[int, str]:
    """The status, 0 where nobody answered, and the room's sentence."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the room is on this network
    try:
        with direct.open(request, timeout=10) as answer:
            return answer.status, ""
    except urllib.error.HTTPError as refusal:
        try:
            return refusal.code, str(json.loads(refusal.read(10_000))["error"])
        except (ValueError, KeyError, TypeError):
            return refusal.code, refusal.reason
    except (OSError, HTTPException) as problem:
        return 0, str(getattr(problem, "reason", problem))


def _address(url: str, token: str) -> tuple[str, str]:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InvalidValue(
            f"'{url}' is not the address of a room", "Copy what `perfkit room` printed: http://…"
        )
    given = urllib.parse.parse_qs(parts.query).get("token", [""])[0]
    return f"{parts.scheme}://{parts.netloc}", token or given


def _shared(panel: LadderPanel, name: str) -> Shared:
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
        client=_CLIENT, name=name[:40], stage=stage, title=title or stage, device=plan.device,
        workload=last.workload if last else workloads.reference(plan.workload),
        machine=machine.describe(facts)[:200], prediction=panel.prediction,
        confidence=panel.confidence and panel.confidence / 100,
        role="previous" if panel.from_below else "baseline",
        run=msgspec.Raw(runs.encode(slim(last)) if last else b"null"),
    )  # fmt: skip
