"""The line to the parent: JSON lines over a socket in a folder that only this user can enter."""

from __future__ import annotations

import json
import os
import select
import socket
from typing import Any


class Channel:
    """One rank's connection; it says hello at once."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._received = b""
        self.send({
            "rank": int(os.environ.get("RANK", "0")), "world": int(os.environ.get("WORLD_SIZE", "1")),
            "pid": os.getpid(),
        })  # fmt: skip

    def send(self, message: dict[str, Any]) -> None:
        """One message; a parent that has gone does not matter here, the next `receive` notices it."""
        try:
            self._socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def answer(self, value: dict[str, Any]) -> None:
        """The answer to a command."""
        self.send({"type": "Answer", "value": value})

    def fail(self, kind: str, what: str, remedy: str) -> None:
        """A failure in words."""
        self.send({"type": "Failure", "kind": kind, "what": what, "remedy": remedy})

    def waiting(self) -> bool:
        """Whether a command has arrived, or the parent has gone."""
        return b"\n" in self._received or bool(select.select([self._socket], [], [], 0)[0])

    def receive(self) -> dict[str, Any] | None:
        """The next command, once there is one; None when the parent has gone."""
        while b"\n" not in self._received:
            try:
                chunk = self._socket.recv(65536)
            except OSError:
                chunk = b""
            if not chunk:
                return None
            self._received += chunk
        line, self._received = self._received.split(b"\n", 1)
        command: dict[str, Any] = json.loads(line)
        return command
