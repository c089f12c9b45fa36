"""Reading a trace file as a stream of text, in pieces of complete events."""

import contextlib
import gzip
import re
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from perfkit import machine
from perfkit.errors import InvalidValue, PerfkitError

MIB = 1 << 20
PIECE = 2 * MIB
LONGEST = 64 * MIB
"""Text without the end of an event: more is no trace."""
ADVICE = "Give a *.pt.trace.json or .json.gz file of the PyTorch profiler, of one rank"
_Id = Annotated[int, msgspec.Meta(ge=-(1 << 62), lt=1 << 62)]
_T = TypeVar("_T")
Tell = Callable[[str, float], object]
"""Called with what is being read, and the share that is done."""


def find(name: str | Path) -> Path:
    """The file of a trace; `recorded:NAME` is one that comes with perfkit."""
    kind, _, wanted = str(name).partition(":")
    if kind != "recorded":
        return Path(name)
    return machine.shipped("recordings/traces") / f"{wanted}.pt.trace.json.gz"


class TraceError(PerfkitError):
    """A file that cannot be read as a profiler trace."""


class Args(Struct, gc=False):
    """Arguments of an event of any kind; -1, None or empty where the file has none."""

    correlation: _Id = -1
    bytes: _Id = -1
    size: _Id = -1  # where ROCm puts the bytes of a copy: at its launch
    blocks: float | None = field(name="blocks per SM", default=None)
    occupancy: float | None = field(name="est. achieved occupancy %", default=None)
    dims: Raw = field(name="Input Dims", default=Raw())
    types: Raw = field(name="Input type", default=Raw())
    stack: str = field(name="Call stack", default="")
    name: str = ""  # of a thread


class Event(Struct, gc=False):
    """A trace event. Times in µs are exact: nanoseconds need more digits than a float holds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: Decimal = Decimal(0)
    dur: Decimal = Decimal(0)
    args: Args | None = None


class Device(Struct):
    """A GPU as the profiler describes it."""

    name: str | None = None
    computeMajor: int | None = None
    computeMinor: int | None = None


class Head(Struct):
    """What stands before the events. `simulated`: the basis of a simulated trace."""

    deviceProperties: list[Device] = []
    distributedInfo: dict[str, Any] = {}
    simulated: dict[str, str] | None = None


class _Rest(Struct):
    traceEvents: list[Raw]


class Reader:
    """The events of a `.json` or `.json.gz` (recognised by content), and what was wrong with the file.

    Of a file that is cut off or damaged, the events that are complete are read.

    Args:
        path: the file.
        tell: called after each MiB of text.
    """

    def __init__(self, path: Path, tell: Tell) -> None:
        self.path, self._tell = path, tell
        self.head = Head()
        self.dropped = 0
        """Events that are no events, or have impossible values."""
        self.truncated = False

    def pieces(self) -> Iterator[list[Event]]:
        """The events, piece by piece.

        Raises:
            InvalidValue: the file cannot be read.
            TraceError: it is not a trace.
        """
        texts = self._texts()
        text = self._opened(texts)
        for more in texts:
            text += more
            if len(text) > LONGEST:
                break
            if len(text) >= PIECE:
                starts = [match.end() for match in _BETWEEN.finditer(text, len(text) - MIB // 4)]
                if starts:
                    yield self._events(text[: starts[-1]].rstrip(_COMMA))
                    text = text[starts[-1] :]
        yield self._last(text)

    def _texts(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as raw:
                size = self.path.stat().st_size
                packed = raw.peek(2)[:2] == b"\x1f\x8b"
                file = gzip.GzipFile(fileobj=raw) if packed else raw
                while text := file.read1(MIB):
                    yield text
                    self._tell(f"reading {self.path.name}", raw.tell() / size)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            self.truncated = True
        except OSError as error:
            raise InvalidValue(f"cannot read {self.path}: {error.strerror or error}", ADVICE) from error

    def _opened(self, texts: Iterator[bytes]) -> bytes:
        """The text from the first event on."""
        head = b""
        for text in texts:
            head = (head + text).removeprefix(b"\xef\xbb\xbf").lstrip()
            if opening := _OPENING.match(head):
                self.head = _decode(opening[0] + b"]}", Head) or Head()
                return head[opening.end() :]
            if len(head) > LONGEST:
                break
        raise TraceError(f"{self.path.name}: this is no JSON with a list 'traceEvents'", ADVICE)

    def _last(self, text: bytes) -> list[Event]:
        """The events of the text's end, which something may follow."""
        for end in (b"", b"}"):  # of an object, of a list
            if rest := _decode(b'{"traceEvents":[' + text + end, _Rest):
                return self._events(b",".join(rest.traceEvents))
        self.truncated = True
        return self._events(text)

    def _events(self, text: bytes) -> list[Event]:
        """Events between commas: all at once, or where that fails, each that can be decoded."""
        events = _decode(b"[" + text + b"]", list[Event])
        if events is not None:
            return events
        ends = [0, *(match.end() for match in _BETWEEN.finditer(text)), len(text)]
        each = [_decode(text[start:end].rstrip(_COMMA), Event) for start, end in pairwise(ends)]
        self.dropped += each.count(None)
        return [event for event in each if event]


def _decode(text: bytes, kind: type[_T]) -> _T | None:
    for form in (bytes, repaired):
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(form(text), type=kind, strict=False)
    return None


_COMMA = b", \t\r\n"
_OPENING = re.compile(rb'\[|.*?"traceEvents"\s*:\s*\[', re.DOTALL)
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*")')
_ESCAPES = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_NOT_A_NUMBER = re.compile(rb"([:,\[]\s*)-?(?:NaN|nan|Infinity|inf)(?=\s*[,}\]])")
_CONTROL = bytes(32 if byte < 32 else byte for byte in range(256))


def repaired(text: bytes) -> bytes:
    r"""Fixes what other writers get wrong: `C:\Users` unescaped, bare NaN, control characters, bad UTF-8."""
    text = text.decode("utf-8", "replace").encode().translate(_CONTROL)
    text = _ESCAPES.sub(lambda match: match[0] if match[1] else rb"\\", text)
    return _NOT_A_NUMBER.sub(rb"\1null", text)
