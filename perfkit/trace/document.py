"""From JSON text to event objects: a fast typed decoding, and a slower way for files that need it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, Generic, TypeVar

import msgspec

from perfkit.errors import TraceError
from perfkit.trace.source import MIB, Irregular, cut, repair


class Event(msgspec.Struct, gc=False):
    """One trace event; times in microseconds. `args` stays undecoded text until a column needs it."""

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


E = TypeVar("E")


class Document(msgspec.Struct, Generic[E]):
    """A trace file in object form. The fields beside the events are decoded later."""

    traceEvents: list[E]
    deviceProperties: msgspec.Raw = msgspec.Raw()
    distributedInfo: msgspec.Raw = msgspec.Raw()
    simulated: msgspec.Raw = msgspec.Raw()


class Parsed(msgspec.Struct):
    """A document and what was wrong with its file."""

    document: Document[Any]
    dropped: int = 0
    truncated: bool = False
    notes: list[str] = []


_FINE = re.compile(rb'"ts":\s*\d{14,}\.\d')  # nanoseconds beyond a float's 53 bits
_OPENING = re.compile(rb'"traceEvents":\s*\[')
_BETWEEN = b"\n  },\n  {"  # no string holds a bare line feed, and arguments are indented deeper
_LONGEST = 16 * MIB
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def _event_type(text: bytes) -> type[Event]:
    return ExactEvent if _FINE.search(text, 0, MIB // 4) else Event


def parse_pieces(pieces: Iterable[bytes], take: Callable[[list[Event]], None]) -> Document[Any]:
    """The fast way, for files as the profiler writes them: decodes events one piece at a time.

    Args:
        pieces: the text, cut anywhere.
        take: called with each piece's events.

    Returns:
        The document without its events.

    Raises:
        Irregular: something is not as expected; read the file as a whole instead.
    """
    head, rest = b"", b""
    kind: Any = Event
    try:
        for text in pieces:
            piece = text
            if not head:
                rest += piece
                opening = _OPENING.search(rest)
                if opening is None and len(rest) > _LONGEST:
                    raise Irregular
                if opening is None:
                    continue
                head, rest, piece = rest[: opening.end()], b"", rest[opening.end() :]
                kind = _event_type(piece)
            end = piece.rfind(_BETWEEN)
            if end >= 0:
                body = b"".join((b"[", rest, memoryview(piece)[: end + 4], b"]"))
                take(msgspec.json.decode(body, type=list[kind]))
                rest = piece[end + 5 :]
            elif len(rest := rest + piece) > _LONGEST:
                raise Irregular
        last = msgspec.json.decode(b'{"traceEvents": [' + rest, type=Document[kind])
        take(last.traceEvents)
        start = msgspec.json.decode(head + b"]}", type=Document[Any])
    except _UNREADABLE as error:
        raise Irregular from error
    properties = start.deviceProperties or last.deviceProperties
    simulated = start.simulated or last.simulated
    return Document([], properties, start.distributedInfo or last.distributedInfo, simulated)


_GIVE = "Give a *.pt.trace.json or .json.gz file of the PyTorch profiler."


def parse(text: bytes, damaged: bool) -> Parsed:
    """Decodes a whole trace; repairs it, or takes what is whole where it is broken or was `damaged`.

    Raises:
        TraceError: it is no trace, or nothing in it is whole.
    """
    opening = text[:MIB].lstrip()[:1]
    if opening not in (b"{", b"["):
        raise TraceError("this is neither a JSON object nor a list", _GIVE)
    if opening == b"[":
        text = b'{"traceEvents":' + text + b"}"
    try:
        parsed = _parse(text)
    except RecursionError as error:
        raise TraceError("brackets are nested too deeply for a trace", _GIVE) from error
    if damaged:
        parsed.truncated = True
        parsed.notes.append("gzip data end early or are damaged")
    return parsed


def _parse(text: bytes) -> Parsed:
    try:
        return _decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        text = repair(text)
    try:
        parsed = _decode(text)
        parsed.notes = ["invalid escapes, bytes or numbers were repaired"]
        return parsed
    except msgspec.DecodeError as error:
        problem = str(error).removeprefix("JSON is malformed: ")
    position = re.search(r"\(byte (\d+)\)", problem)
    for candidate in cut(text, int(position[1]) if position else len(text)):
        with contextlib.suppress(msgspec.DecodeError):
            parsed = _decode(candidate)
            parsed.truncated = True
            parsed.notes = [f"the JSON breaks off or is damaged ({problem})"]
            return parsed
    raise TraceError(f"this is not the JSON of a profiler trace ({problem})", _GIVE)


def _decode(text: bytes) -> Parsed:
    """One typed pass; if a value has an unexpected type, event by event, and such events are dropped."""
    kind: Any = _event_type(text)
    with contextlib.suppress(msgspec.ValidationError):
        return Parsed(msgspec.json.decode(text, type=Document[kind]))
    try:
        raw = msgspec.json.decode(text, type=Document[msgspec.Raw])
    except msgspec.ValidationError as error:
        raise TraceError("this JSON has no list 'traceEvents'", _GIVE) from error
    events, decode = [], msgspec.json.Decoder(ExactEvent, strict=False).decode
    for event in raw.traceEvents:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            events.append(decode(event))
    document = Document(events, raw.deviceProperties, raw.distributedInfo, raw.simulated)
    return Parsed(document, dropped=len(raw.traceEvents) - len(events))


T = TypeVar("T")


def decode_or_none(raw: bytes | msgspec.Raw, kind: type[T]) -> T | None:
    """A value of a part that may be missing or odd; None where it cannot be read."""
    try:
        return msgspec.json.decode(raw, type=kind, strict=False) if raw else None
    except _UNREADABLE:
        return None
