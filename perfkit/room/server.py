"""The server of a room: one page to look at, one address to post to, both behind a token."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, HTTPError, RequestHandler, StaticFileHandler, stream_request_body

from perfkit.errors import InvalidValue, PerfkitError
from perfkit.room import shared
from perfkit.room.board import Board

POSTS_PER_MINUTE = 600
"""From one address: a whole class may sit behind one."""
_DRAINED = 16 * 1024**2
"""Bytes of a post that are read at most, and thrown away beyond `shared.MAX_BYTES`: so the sender gets to
read the answer. What announces more loses its connection."""
_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class _Answer(RequestHandler):
    """What all answers have: headers that keep a browser narrow, and errors as one sentence."""

    def initialize(self, board: Board, posts: Limit) -> None:
        """Called for each request."""
        self.board, self.posts = board, posts

    def set_default_headers(self) -> None:
        """No script of others, nothing kept, no address handed on."""
        self.set_header("Server", "perfkit")
        self.set_header("Content-Security-Policy", _POLICY)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cache-Control", "no-store")

    def check_token(self) -> None:
        """Refuses a request without the token of the room."""
        header = self.request.headers.get("Authorization", "").partition(" ")[2]
        given = header or self.get_query_argument("token", "")
        if not hmac.compare_digest(given.encode(), self.board.token.encode()):
            raise _Refused(401, "the token is missing or wrong. Ask whoever leads the room for it")

    def log_exception(self, *problem: Any) -> None:
        """A refusal is no event, and its address may hold the token."""
        if not isinstance(problem[1], HTTPError):
            super().log_exception(*problem)

    def write_error(self, status_code: int, **details: Any) -> None:
        """A status and a sentence; nothing of what was sent."""
        self.set_header("Content-Type", "application/json")
        if status_code == 429:
            self.set_header("Retry-After", "5")
        self.finish(json.dumps({"error": _sentence(status_code, details)}))


def _sentence(status: int, details: dict[str, Any]) -> str:
    problem = details.get("exc_info", (None, None))[1]
    if isinstance(problem, _Refused):
        return problem.sentence
    return {
        400: "this is not a request",
        404: "there is nothing here",
        405: "this takes no such request",
    }.get(status, "the room could not do this; see its terminal")


class _Refused(HTTPError):
    """A post that is refused, with a sentence of any length."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(status)
        self.sentence = sentence


class Limit:
    """At most so much in a minute from each address.

    Args:
        a_minute: how much.
        clock: seconds; an argument so that a test need not wait.
    """

    def __init__(self, a_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = a_minute, clock
        self._minute, self._counts = 0.0, Counter[str]()

    def take(self, address: str) -> bool:
        """Whether one more is allowed now."""
        minute = self._clock() // 60
        if minute != self._minute:
            self._minute, self._counts = minute, Counter()
        self._counts[address] += 1
        return self._counts[address] <= self._most


class _Page(_Answer):
    def get(self) -> None:
        self.check_token()
        self.finish(self.board.page(f"{self.request.protocol}://{self.request.host}"))


class _Rows(_Answer):
    def get(self) -> None:
        self.check_token()
        self.finish(self.board.body())


@stream_request_body
class _Share(_Answer):
    """Takes a post apart as it arrives, so that a large one needs no memory."""

    def prepare(self) -> None:
        self._body, self._size = bytearray(), 0

    def data_received(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size <= shared.MAX_BYTES:
            self._body += chunk

    def post(self) -> None:
        self.check_token()
        if self._size > shared.MAX_BYTES:
            limit = f"{shared.MAX_BYTES >> 10} KiB"
            raise _Refused(413, f"this post has over {limit}. Share one panel at a time")
        if not self.posts.take(self.request.remote_ip or ""):
            raise _Refused(429, "too many posts from this address. Wait some seconds, then share again")
        try:
            self.board.add(shared.entry(bytes(self._body)))
        except InvalidValue as problem:
            raise _Refused(422, str(problem)) from None
        except PerfkitError as problem:
            raise _Refused(507, str(problem)) from None
        self.finish({"shared": len(self.board.entries)})


def application(board: Board) -> Application:
    """The room's addresses."""
    posts = {"board": board, "posts": Limit(POSTS_PER_MINUTE)}
    files = {"path": Path(__file__).parent}
    return Application(
        [("/", _Page, posts), ("/board", _Rows, posts), ("/share", _Share, posts),
         (r"/(board\.(?:css|js))", StaticFileHandler, files)],
        default_handler_class=_Nothing, default_handler_args=posts, log_function=_quiet,
    )  # fmt: skip


class _Nothing(_Answer):
    def prepare(self) -> None:
        raise HTTPError(404)


def _quiet(handler: RequestHandler) -> None:
    """No line for each request: an address may hold the token."""


async def serve(board: Board, host: str, port: int, on_start: Callable[[int], None]) -> None:
    """Answers until it is cancelled.

    Args:
        board: what it shows and adds to.
        host: the address to listen at.
        port: 0 for a free one.
        on_start: called with the port, once it listens.

    Raises:
        InvalidValue: the address cannot be listened at.
    """
    try:
        sockets = bind_sockets(port, host)
    except OSError as problem:
        raise InvalidValue(
            f"cannot listen at {host}:{port}: {problem.strerror or problem}",
            "Choose another with --port, or a --host of this machine",
        ) from None
    server = HTTPServer(
        application(board),
        max_body_size=_DRAINED,
        body_timeout=20,
        idle_connection_timeout=60,
        max_header_size=16_384,
    )
    server.add_sockets(sockets)
    on_start(sockets[0].getsockname()[1])
    try:
        await asyncio.Event().wait()
    finally:
        server.stop()
        await server.close_all_connections()


def address_on_network() -> str:
    """This machine's address on its network; the loopback's if it has none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation: it picks the outgoing interface
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
