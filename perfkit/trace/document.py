"""From JSON text to event objects: a fast typed decode, and slower ways for files that need them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any

import msgspec

from perfkit.trace.errors import TraceError
from perfkit.trace.source import Irregular, cut, repair


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
    """The same where nanoseconds hide behind more digits than a float holds (1712195495520824.518)."""

    ts: Decimal = Decimal(0)  # type: ignore[assignment]
    dur: Decimal = Decimal(0)  # type: ignore[assignment]


class Document(msgspec.Struct):
    """A trace file in object form. Fields beside the events are decoded leniently, later."""

    traceEvents: list[Event]
    deviceProperties: msgspec.Raw = msgspec.Raw()
    distributedInfo: msgspec.Raw = msgspec.Raw()


class _Exact(Document):
    traceEvents: list[ExactEvent]  # type: ignore[assignment]


class _Loose(Document):
    traceEvents: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]


class _LooseEvent(msgspec.Struct, gc=False):
    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    pid: Any = 0
    tid: Any = 0
    ts: Any = 0.0
    dur: Any = 0.0
    args: msgspec.Raw = msgspec.Raw()


class Parsed(msgspec.Struct):
    """Events, properties and what was wrong with the file."""

    document: Document
    exact: bool = False  # times are Decimal
    dropped: int = 0
    truncated: bool = False
    notes: list[str] = []


_FINE = re.compile(rb'"ts":\s*\d{14,}\.\d')  # nanoseconds beyond a float's 53 bits


_OPENING = re.compile(rb'"traceEvents":\s*\[')
_BETWEEN = b"\n  },\n  {"  # no string holds a bare line feed, and arguments are indented deeper
_LONGEST = 16 << 20


def parse_pieces(pieces: Iterable[bytes], take: Callable[[list[Event], bool], None]) -> Document:
    """The fast way, for files as the profiler writes them: events are decoded a piece at a time.

    Args:
        pieces: the text, cut anywhere.
        take: called with each piece's events and whether their times are decimal numbers.

    Returns:
        The document's other parts.

    Raises:
        Irregular: something is not as expected; read the file as a whole instead.
    """
    head, rest = b"", b""
    kind: type[Event] = Event
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
                kind = ExactEvent if _FINE.search(piece) else Event
            end = piece.rfind(_BETWEEN)
            if end >= 0:
                body = b"".join((b"[", rest, memoryview(piece)[: end + 4], b"]"))
                take(msgspec.json.decode(body, type=list[kind]), kind is ExactEvent)  # type: ignore[valid-type]
                rest = piece[end + 5 :]
            elif len(rest := rest + piece) > _LONGEST:
                raise Irregular
        last = msgspec.json.decode(
            b'{"traceEvents": [' + rest, type=_Exact if kind is ExactEvent else Document
        )
        take(last.traceEvents, kind is ExactEvent)
        start = msgspec.json.decode(head + b"]}", type=Document)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Irregular from error
    properties = start.deviceProperties or last.deviceProperties
    return Document([], properties, start.distributedInfo or last.distributedInfo)


def parse(text: bytes, damaged: bool) -> Parsed:
    """Decode a whole trace; mend it, or take what is whole where it is broken or was `damaged`.

    Raises:
        TraceError: it is no trace, or nothing in it is whole.
    """
    try:
        parsed = _parse(text)
    except RecursionError as error:
        raise TraceError("brackets are nested too deeply for a trace", "Is this a profiler trace?") from error
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
    except msgspec.DecodeError as error:
        parsed = _first_whole(text, error)
        parsed.truncated = True
        parsed.notes = [
            f"the JSON breaks off or is damaged ({str(error).removeprefix('JSON is malformed: ')})"
        ]
    return parsed


def _first_whole(text: bytes, error: msgspec.DecodeError) -> Parsed:
    found = re.search(r"\(byte (\d+)\)", str(error))
    for candidate in cut(text, int(found.group(1)) if found else len(text)):
        try:
            return _decode(candidate)
        except msgspec.DecodeError:
            continue
    raise TraceError(
        f"this is not the JSON of a profiler trace ({error})", "Give a *.pt.trace.json or .json.gz file."
    )


def _decode(text: bytes) -> Parsed:
    """One typed pass; if a value has an unexpected type, one event at a time."""
    head = text[: 1 << 20].lstrip()[:1]
    if head not in (b"{", b"["):
        raise TraceError("this is no JSON object or list", "Give a *.pt.trace.json or .json.gz file.")
    exact = _FINE.search(text, 0, 1 << 18) is not None
    kind: Any = (
        (_Exact if exact else Document) if head == b"{" else list[ExactEvent] if exact else list[Event]
    )
    try:
        whole = msgspec.json.decode(text, type=kind)
        return Parsed(whole if head == b"{" else Document(whole), exact)
    except msgspec.ValidationError:
        return _tolerant(text, head == b"{")


def _tolerant(text: bytes, is_object: bool) -> Parsed:
    """Event by event: those with a wrong type are coerced, or dropped and counted."""
    try:
        loose = msgspec.json.decode(text, type=_Loose) if is_object else _Loose(msgspec.Raw(text))
        raws = msgspec.json.decode(loose.traceEvents or b"null", type=list[msgspec.Raw])
    except msgspec.ValidationError as error:
        raise TraceError("this JSON holds no list 'traceEvents'", "Give a PyTorch profiler trace.") from error
    strict = msgspec.json.Decoder(ExactEvent).decode
    events = [event for raw in raws if (event := _one(raw, strict)) is not None]
    document = Document(events, loose.deviceProperties, loose.distributedInfo)
    return Parsed(document, exact=True, dropped=len(raws) - len(events))


def _one(raw: msgspec.Raw, strict: Callable[[msgspec.Raw], Event]) -> Event | None:
    try:
        return strict(raw)
    except (msgspec.ValidationError, UnicodeDecodeError):
        pass
    try:
        loose = msgspec.json.decode(raw, type=_LooseEvent)
        times = [Decimal(value) for value in (loose.ts, loose.dur) if isinstance(value, str | int | float)]
        if len(times) < 2 or not all(t.is_finite() for t in times) or not isinstance(loose.name, str):
            return None
    except (msgspec.ValidationError, UnicodeDecodeError, ArithmeticError, ValueError):
        return None
    ids = [value if isinstance(value, int | str) else str(value) for value in (loose.pid, loose.tid)]
    texts = {"ph": str(loose.ph), "cat": str(loose.cat), "name": loose.name}
    return ExactEvent(**texts, pid=ids[0], tid=ids[1], ts=times[0], dur=times[1], args=loose.args)


def loosely(raw: bytes | msgspec.Raw) -> Any:
    """Any JSON value of a part that may be missing or odd; None where it cannot be read."""
    try:
        return msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
