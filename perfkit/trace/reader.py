"""Reading a trace file: a bounded stream of text, cut into pieces of whole events, decoded one by one.

A piece of the text is all that is held beside the columns, so memory grows with what is kept of an event and
not with the file.
"""

import contextlib
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np

from perfkit.errors import TraceError

MIB = 1 << 20
LARGEST = 64 << 30
"""Bytes of text, unpacked, that are read from one file."""
RATIO = 300
"""Unpacked over packed size; more is a zip bomb: profiler traces have 20 to 60, deflate allows 1032."""
PIECE = 2 * MIB
ADVICE = "Give a *.pt.trace.json or .json.gz file of the PyTorch profiler"

Id = Annotated[int, msgspec.Meta(ge=-(1 << 62), lt=1 << 62)]


class Args(msgspec.Struct, gc=False):
    """Arguments of an event of any kind; -1 or NaN where the file has none, None where it has a NaN."""

    correlation: Id = -1
    external: Id = msgspec.field(name="External id", default=-1)
    external_old: Id = msgspec.field(name="external id", default=-1)
    device: Id = -1
    bytes: Id = -1
    size: Id = -1  # where ROCm puts the bytes of a copy: at its launch
    blocks: float | None = msgspec.field(name="blocks per SM", default=np.nan)
    occupancy: float | None = msgspec.field(name="est. achieved occupancy %", default=np.nan)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default_factory=msgspec.Raw)
    types: msgspec.Raw = msgspec.field(name="Input type", default_factory=msgspec.Raw)
    stack: str = msgspec.field(name="Call stack", default="")
    name: str = ""  # of a thread
    change: Id = msgspec.field(name="Bytes", default=0)  # this and those below: of `[memory]`
    device_type: Id = msgspec.field(name="Device Type", default=-1)
    device_id: Id = msgspec.field(name="Device Id", default=-1)
    address: Id = msgspec.field(name="Addr", default=-1)
    allocated: Id = msgspec.field(name="Total Allocated", default=-1)
    reserved: Id = msgspec.field(name="Total Reserved", default=-1)


class Event(msgspec.Struct, gc=False):
    """One trace event; times in microseconds. `args` stays text until a column needs it."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw()


class ExactEvent(Event, gc=False):
    """The same where nanoseconds need more digits than a float holds (1712195495520824.518)."""

    ts: Decimal = Decimal(0)  # type: ignore[assignment]
    dur: Decimal = Decimal(0)  # type: ignore[assignment]


@dataclass
class Document:
    """What a file holds beside its events, and what was wrong with it."""

    properties: bytes = b""
    world: bytes = b""
    simulated: bytes = b""
    dropped: int = 0
    """Events that could not be read."""
    truncated: bool = False
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Adds a problem of the file, once."""
        if text not in self.notes:
            self.notes.append(text)


class _Frame(msgspec.Struct):
    """A document with the events taken out."""

    traceEvents: list[msgspec.Raw]
    deviceProperties: msgspec.Raw = msgspec.Raw()
    distributedInfo: msgspec.Raw = msgspec.Raw()
    simulated: msgspec.Raw = msgspec.Raw()


T = TypeVar("T")


def decode_or_none(raw: bytes | msgspec.Raw, kind: type[T]) -> T | None:
    """A value of a part that may be missing or odd; None where it cannot be read."""
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return msgspec.json.decode(raw, type=kind, strict=False) if raw else None
    return None


def read(path: Path, document: Document) -> Iterator[list[Any]]:
    """The events of a `.json` or `.json.gz` (recognised by content), piece by piece.

    What is broken is repaired where that is certain; of a file that breaks off, the whole events before the
    break are read. `document` takes the rest of the file and its problems.

    Raises:
        TraceError: the file cannot be read, is larger than allowed, or is not a trace.
    """
    rest, pieces = _opened(_text(path, document), document)
    kind: Any = ExactEvent if _FINE.search(rest, 0, MIB // 4) else Event
    wanted = PIECE
    for piece in pieces:
        rest += piece
        if len(rest) < wanted:
            continue
        events, end = _whole_events(rest, kind, document)
        if end:
            yield events
            rest, wanted = rest[end:], PIECE
        else:
            wanted = 2 * len(rest)  # no event ends here: wait for more
    yield from _last(rest, kind, document)


def _text(path: Path, document: Document) -> Iterator[bytes]:
    """The text in pieces of at most 2 MiB; ends early, with a note, where gzip data are damaged."""
    total, allowed = 0, LARGEST
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            if packed:
                allowed = min(LARGEST, max(64 * MIB, path.stat().st_size * RATIO))
            file.seek(0)
            blocks = iter(lambda: file.read(MIB // 64 if packed else MIB), b"")
            for piece in _inflated(blocks, document) if packed else blocks:
                total += len(piece)
                if total > allowed:
                    raise TraceError(
                        f"the file {'unpacks to' if packed else 'has'} more than {allowed:,} bytes",
                        "If you trust the file, unpack it first",
                    )
                yield piece
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}", "Check the path") from error


def _inflated(blocks: Iterator[bytes], document: Document) -> Iterator[bytes]:
    inflate = zlib.decompressobj(31)
    try:
        for block in blocks:
            packed = block
            while packed:
                if inflate.eof:  # several members, one after the other
                    inflate = zlib.decompressobj(31)
                yield inflate.decompress(packed, PIECE)
                packed = inflate.unconsumed_tail or inflate.unused_data
    except zlib.error:
        inflate = zlib.decompressobj(31)
    if not inflate.eof:
        document.truncated = True
        document.note("gzip data end early or are damaged")


_FINE = re.compile(rb'"ts":\s*\d{14,}\.\d')  # nanoseconds beyond a float's 53 bits
_OPENING = re.compile(rb'\s*\[|.*?"traceEvents"\s*:\s*\[', re.DOTALL)
_BOUNDARY = re.compile(rb'\}\s*,\s*(?=\{\s*")')


def _opened(pieces: Iterator[bytes], document: Document) -> tuple[bytes, Iterator[bytes]]:
    """The text from the first event on, and the pieces that follow."""
    head = b""
    for piece in pieces:
        head = (head + piece).removeprefix(b"\xef\xbb\xbf")
        opening = _OPENING.match(head)
        if opening:
            before = head[: opening.end()]
            if before.lstrip()[:1] == b"{":
                _keep_frame(before + b"]}", document)
            return head[opening.end() :], pieces
        if head.strip() and head.lstrip()[:1] not in (b"{", b"["):
            raise TraceError("this is neither a JSON object nor a list", ADVICE)
        if len(head) > 16 * MIB:
            break
    if not head.strip():
        raise TraceError("the file is empty", "Record the trace again; the profiler may not have finished")
    raise TraceError("this JSON has no list 'traceEvents'", ADVICE)


def _keep_frame(text: bytes, document: Document) -> list[msgspec.Raw] | None:
    """Keeps the fields beside the events; returns the events left in the text, None if it is no document."""
    frame = decode_or_none(text, _Frame)
    if frame is None:
        return None
    document.properties = document.properties or bytes(frame.deviceProperties)
    document.world = document.world or bytes(frame.distributedInfo)
    document.simulated = document.simulated or bytes(frame.simulated)
    return frame.traceEvents


def _whole_events(text: bytes, kind: Any, document: Document) -> tuple[list[Any], int]:
    """The events up to the last boundary between two of them, and where the rest begins (0: no boundary)."""
    boundaries = [match.end() for match in _BOUNDARY.finditer(text, max(0, len(text) - MIB // 4))]
    for end in reversed(boundaries[-8:]):  # a boundary may lie inside of an event's own arguments
        body = text[:end].rstrip(b", \t\r\n")
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.json.decode(b"[" + body + b"]", type=list[kind]), end
        raws = _raw_events(body, document)
        if raws is not None:
            return _one_by_one(raws, document), end
    return [], 0


def _last(text: bytes, kind: Any, document: Document) -> Iterator[list[Any]]:
    """The events of the text's end, with what follows them; those before the break of a broken file."""
    for whole in (b'{"traceEvents":[' + text, b'{"traceEvents":[' + text + b"}"):
        for candidate in (whole, repaired(whole)):
            raws = _keep_frame(candidate, document)
            if raws is not None:
                if candidate is not whole:
                    document.note(_REPAIRED)
                yield _typed(raws, kind, document)
                return
    document.truncated = True
    document.note("the JSON breaks off or is damaged")
    text = repaired(text)
    with contextlib.suppress(StopIteration):
        yield _typed(next(_before_damage(text)), kind, document)


def _before_damage(text: bytes) -> Iterator[list[msgspec.Raw]]:
    """The whole events before the place where the text stops being JSON."""
    try:
        yield msgspec.json.decode(b"[" + text + b"]", type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        position = re.search(r"\(byte (\d+)\)", str(error))
    damage = int(position[1]) if position else len(text)
    for end in [match.start() + 1 for match in _BOUNDARY.finditer(text, 0, damage)][:-9:-1]:
        raws = decode_or_none(b"[" + text[:end] + b"]", list[msgspec.Raw])
        if raws:
            yield raws


def _raw_events(body: bytes, document: Document) -> list[msgspec.Raw] | None:
    raws = decode_or_none(b"[" + body + b"]", list[msgspec.Raw])
    if raws is None:
        raws = decode_or_none(b"[" + repaired(body) + b"]", list[msgspec.Raw])
        if raws is not None:
            document.note(_REPAIRED)
    return raws


def _typed(raws: list[msgspec.Raw], kind: Any, document: Document) -> list[Any]:
    decoded = decode_or_none(b"[" + b",".join(raws) + b"]", list[kind]) if raws else []
    return _one_by_one(raws, document) if decoded is None else decoded


def _one_by_one(raws: list[msgspec.Raw], document: Document) -> list[Any]:
    """Each event by itself where some have values of a wrong type: those are left out and counted."""
    events = [decode_or_none(raw, ExactEvent) for raw in raws]
    document.dropped += events.count(None)
    return [event for event in events if event is not None]


_REPAIRED = "invalid escapes, bytes or numbers were repaired"
_ESCAPES = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_NOT_A_NUMBER = re.compile(rb"([:,\[]\s*)-?(?:NaN|nan|Infinity|inf)(?=\s*[,}\]])")
_CONTROL = bytes(32 if byte < 32 else byte for byte in range(256))


def repaired(text: bytes) -> bytes:
    r"""Fixes what other writers get wrong: `C:\Users` unescaped, bare NaN, control characters, bad UTF-8."""
    text = text.decode("utf-8", "replace").encode().translate(_CONTROL)
    text = _ESCAPES.sub(lambda match: match.group() if match.group(1) else rb"\\", text)
    return _NOT_A_NUMBER.sub(rb"\1null", text)
