"""Reads a trace file as a stream of text, in pieces of complete events."""

import contextlib
import gzip
import io
import json
import re
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Raw, Struct

from perfkit import machine
from perfkit.additions.trace import formats
from perfkit.additions.trace.formats import ADVICE
from perfkit.errors import InvalidValue, one_of

MIB = 1 << 20
PIECE = 2 * MIB
LONGEST_HEAD, LONGEST_EVENT = 64 * MIB, 8 * MIB
"""A trace has its list of events, and the end of each event, within so much text."""
_AFTER = MIB  # the most text after the events that is read
_Id = Annotated[int, msgspec.Meta(ge=-(1 << 62), lt=1 << 62)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_T = TypeVar("_T")
Tell = Callable[[str, float], object]  # called with what is being read, and the share done
Opens = Callable[[], Any]  # opens a file of bytes


def find(name: str | Path) -> Path:
    """The file of a trace; `recorded:NAME` is a trace that comes with perfkit."""
    kind, _, wanted = str(name).partition(":")
    if kind != "recorded":
        return Path(name)
    files = sorted(machine.shipped("recordings/traces").glob("*.pt.trace.json.gz"))
    known = {file.name.partition(".")[0]: file for file in files}
    if wanted not in known:
        raise one_of(wanted, [*known], "recorded trace")
    return known[wanted]


class Args(Struct, gc=False):
    """The arguments of an event of any kind; -1, None or empty if the file has none."""

    correlation: _Id = -1
    bytes: _Id = -1
    size: _Id = -1  # ROCm has the bytes of a copy here, at its launch
    operator: float | None = msgspec.field(name="External id", default=None)
    frame: float | None = msgspec.field(name="Python id", default=None)


class Event(Struct, gc=False):
    """A trace event. Times in µs stay text, because nanoseconds need more digits than a float has."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: Raw = Raw()
    dur: Raw = Raw(b"0")
    args: Args | None = None


class Device(Struct):
    """A GPU as the profiler describes it."""

    name: str | None = None
    computeMajor: _Count | None = None
    computeMinor: _Count | None = None


class World(Struct):
    """The process's place in a distributed run."""

    backend: str | None = None
    rank: _Count | None = None
    world_size: int | None = None


class Reader:
    """The complete events of a trace, packed or not, and what is wrong with it; arguments as for `Trace`."""

    def __init__(self, path: Path, opens: Opens | None, tell: Tell) -> None:
        self.path, self._tell = path, tell
        self._opens = opens or (lambda: path.open("rb"))
        self.said: dict[str, Any] = {}  # the fields before and after the events
        self.dropped = 0  # events that are malformed, or impossible
        self.truncated = False  # whether the end of the file is missing
        self.documents = 1  # 2 if a second document follows
        self.begin = b""  # the first bytes of the file, unpacked
        self._share = 0.0  # of the file that has been read
        self._after: bytes | None = None  # the text after the list of events, once its end is reached

    def told(self, kind: type[_T], *names: str) -> _T | None:
        """A field before or after the events, by the first of these names that exists; None if malformed."""
        value = next((self.said[name] for name in names if name in self.said), None)
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(value, kind, strict=False)
        return None

    def pieces(self) -> Iterator[list[Event]]:
        """Yields the events, piece by piece; raises what a `Trace` raises."""
        with contextlib.closing(self._ahead()) as texts:
            text, is_object = self._first(texts)
            for more in texts:
                if self._after is not None:
                    self._after = (self._after + more)[:_AFTER]
                    continue
                text += more
                if len(text) > LONGEST_EVENT:
                    break
                last = _LAST.match(text, max(0, len(text) - MIB // 4)) if len(text) >= PIECE else None
                if last:
                    yield self._events(text[: last.end()].rstrip(_COMMA))
                    text = text[last.end() :]
        if self._after is None:
            yield self._events(text)
        self.truncated = self.truncated or self._after is None
        self._finish(self._after or b"", is_object)

    def refusal(self) -> formats.TraceError:
        """The error that says what the file is instead of a trace of PyTorch's profiler."""
        is_cut = self.truncated and (not self.begin or self.begin.startswith((b"{", b"[")))
        return formats.refusal(self.path.name, self.begin, is_cut)

    def _texts(self) -> Iterator[bytes]:
        try:
            with self._opens() as raw:
                size = raw.seek(0, io.SEEK_END)
                raw.seek(0)
                file = gzip.GzipFile(fileobj=raw) if raw.peek(2)[:2] == formats.GZIP else raw
                while text := file.read1(MIB):
                    self._share = raw.tell() / size
                    yield text
        except formats.DAMAGED:
            self.truncated = True
        except (OSError, RuntimeError) as error:  # RuntimeError: an encrypted archive
            why = getattr(error, "strerror", None) or error
            raise InvalidValue(f"cannot read {self.path}: {why}", ADVICE) from error

    def _ahead(self) -> Generator[bytes]:
        """The texts. While one is used, a thread unpacks the next one."""
        texts = self._texts()
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(next, texts, b"")
            while text := coming.result():
                self._tell(f"reading {self.path.name}", self._share)
                coming = pool.submit(next, texts, b"")
                yield text

    def _first(self, texts: Iterator[bytes]) -> tuple[bytes, bool]:
        """The text from the first event on, and whether the events are inside an object."""
        head = bytearray()
        searched = 0
        for text in texts:
            head += text
            if not searched:
                head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
            self.begin = bytes(head[: formats.ENOUGH])
            if _LIST.match(head):
                return bytes(head[1:]), False
            if head and not head.startswith(b"{"):
                break
            if opening := _OPENING.search(head, searched):
                said = bytes(head[: opening.end()]) + b"]}"
                fields = _decode(said, dict[str, Any]) or _decode(repaired(said), dict[str, Any])
                self.said.update(fields or {})
                return bytes(head[opening.end() :]), True
            if len(head) > LONGEST_HEAD:
                break
            searched = max(0, len(head) - 64)  # the name may be cut in two
        raise self.refusal()

    def _finish(self, after: bytes, is_object: bool) -> None:
        """Reads what follows the events: the rest of the fields, or another document."""
        if is_object:
            text = repaired(b'{"": 0' + after).decode()
            with contextlib.suppress(ValueError, RecursionError):
                _, end = json.JSONDecoder().raw_decode(text)
                # It also accepts half a pair of surrogates, which no page can show.
                self.said.update(_decode(text[:end].encode(), dict[str, Any]) or {})
                after = text[end:].encode()
        if after.lstrip(b" \t\r\n,").startswith((b"{", b"[")) or _OPENING.search(after):
            self.documents = 2

    def _events(self, text: bytes) -> list[Event]:
        """The events in a text: decoded at once, or if that fails, each one that can be decoded."""
        found = self._decoded(text)
        if found is not None:
            return found
        ends = [0, *(match.end() for match in _BETWEEN.finditer(text)), len(text)]
        return [event for start, end in pairwise(ends) for event in self._one(text[start:end])]

    def _one(self, text: bytes) -> list[Event]:
        """Decodes one event of a damaged piece: none if it is damaged, or after the end of the list."""
        if self._after is not None:
            self._after = (self._after + text)[:_AFTER]
            return []
        found = self._decoded(text.rstrip(_COMMA))
        if found is None:
            self.dropped += 1
        return found or []

    def _decoded(self, text: bytes) -> list[Event] | None:
        """The events of a text, in which the list may end; None if the text is damaged."""
        for form in (bytes, repaired):
            for events, after in _cuts(text):
                found = _decode(b"[" + form(events) + b"]", list[Event])
                if found is not None:
                    self._after = after
                    return found
        return None


def _cuts(text: bytes) -> Iterator[tuple[bytes, bytes | None]]:
    """The events of a text, and what follows if the list may end there. Odd arguments give more choices."""
    yield text, None
    for end in islice(_END.finditer(text), 8):
        yield text[: end.start(1)].rstrip(_COMMA), text[end.end() :]


def _decode(text: bytes, kind: type[_T]) -> _T | None:
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(text, type=kind, strict=False)
    return None


_COMMA = b", \t\r\n"
_LIST = re.compile(rb"\[\s*(\{|\]|$)")
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb'\}\s*,\s*(?=\{\s*")')
_LAST = re.compile(rb"(?s:.*)" + _BETWEEN.pattern)
_END = re.compile(rb'(?:\A|\})[\s,]*(\])(?=\s*(?:,\s*"|[}\[{]|\Z))')
_ESCAPES = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_NOT_A_NUMBER = re.compile(rb"([:,\[]\s*)-?(?:NaN|nan|Infinity|inf)(?=\s*[,}\]])")
_CONTROL = bytes(32 if byte < 32 else byte for byte in range(256))


def repaired(text: bytes) -> bytes:
    r"""Fixes what other writers get wrong: `C:\Users` unescaped, bare NaN, control characters, bad UTF-8."""
    text = text.decode("utf-8", "replace").encode().translate(_CONTROL)
    text = _ESCAPES.sub(lambda match: match[0] if match[1] else rb"\\", text)
    return _NOT_A_NUMBER.sub(rb"\1null", text)
