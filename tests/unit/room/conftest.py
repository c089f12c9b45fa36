"""A room on a free port of this machine, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import http.client
import json
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfkit.results import recordings
from perfkit.results import run as runs
from perfkit.results.run import Run
from perfkit.room import server
from perfkit.room.board import Board
from perfkit.room.shared import slim

TOKEN = "a-token-of-the-test"


class Room:
    """A running server, and requests to it."""

    def __init__(self, path: Path) -> None:
        self.board = Board(path, TOKEN)
        ports: queue.Queue[int] = queue.Queue()
        started: queue.Queue[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = queue.Queue()

        async def main() -> None:
            task = asyncio.ensure_future(server.serve(self.board, "127.0.0.1", 0, ports.put))
            started.put((asyncio.get_running_loop(), task))
            await asyncio.wait([task])

        self._thread = threading.Thread(target=lambda: asyncio.run(main()))
        self._thread.start()
        self._loop, self._task = started.get(timeout=10)
        self.port = ports.get(timeout=10)
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=10)
        assert not self._thread.is_alive()

    def ask(
        self, method: str, path: str, body: bytes = b"", token: str = TOKEN
    ) -> tuple[int, dict[str, str], str]:
        """Status, headers, text."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        connection.request(method, path, body, {"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), text

    def post(self, body: bytes | dict[str, Any], token: str = TOKEN) -> tuple[int, str]:
        """Status and sentence."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, _, text = self.ask("POST", "/share", content, token)
        return status, json.loads(text).get("error", "")


def post(client: int = 0, run: Run | None = None, **changes: Any) -> dict[str, Any]:
    """What a panel sends, as plain data; a run brings its stage with it."""
    plain: dict[str, Any] = {
        "client": f"{client:032x}", "name": f"learner {client}", "workload": "here:Photos",
        "stage": "data_loading", "title": "data loading", "device": "cpu", "machine": "2 cores",
        "prediction": 1.5, "confidence": 0.8,
    }  # fmt: skip
    if run is not None:
        plain |= {"workload": run.workload, "stage": run.stage, "title": run.title}
        plain["run"] = msgspec.json.decode(runs.encode(slim(run)))
    return plain | changes


def measured(stage: str = "data_loading") -> Run:
    """A stage that was measured beside the one before."""
    return next(run for run in recordings.find("cpu-quick").runs if run.stage == stage)


@pytest.fixture
def open_room(tmp_path: Path) -> Iterator[Callable[[], Room]]:
    """Opens a room on the test's own file; all of them are closed at the end."""
    opened: list[Room] = []

    def start() -> Room:
        opened.append(Room(tmp_path / "room.json"))
        return opened[-1]

    yield start
    for room in opened:
        if room._thread.is_alive():
            room.stop()


@pytest.fixture
def room(open_room: Callable[[], Room]) -> Room:
    return open_room()
