"""Bytes of a trace file: bounded decompression, and repair of files that were written badly."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfkit.trace.errors import TraceError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a file may unfold to, so that a zip bomb ends in an error.

    Attributes:
        max_bytes: largest JSON text, in bytes, after decompression.
        max_ratio: largest unpacked / packed size beyond the first 64 MiB; profiler traces have 20–60,
            deflate's own limit is 1032.
    """

    max_bytes: int = 4096 * MIB
    max_ratio: float = 300.0


class Irregular(Exception):
    """The file is not as the profiler writes it: it has to be read as a whole and perhaps mended."""


def stream(path: Path, limits: Limits) -> Iterator[bytes]:
    """The text of a `.json` or `.json.gz` (told apart by content), in pieces of at most 2 MiB.

    Pieces take half the time and a fraction of the memory of the whole.

    Raises:
        Irregular: the gzip data end early or are damaged; all that came before was yielded.
        TraceError: the file cannot be read or is larger than allowed.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if packed:
                allowed = min(limits.max_bytes, max(64 * MIB, int(size * limits.max_ratio)))
                step = max(512, min(MIB // 8, size // 32))  # what damage costs at most
                yield from _inflate(iter(lambda: file.read(step), b""), allowed)
            elif size > limits.max_bytes:
                raise TraceError(
                    f"{path.name} is larger than {limits.max_bytes:,} bytes", "Raise Limits.max_bytes."
                )
            else:
                yield from iter(lambda: file.read(MIB), b"")
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}", "Check the path.") from error


_BOMB = "No trace shrinks that much; if you trust it, raise Limits.max_ratio and max_bytes."


def _inflate(raws: Iterator[bytes], allowed: int) -> Iterator[bytes]:
    inflate, size = zlib.decompressobj(31), 0
    for raw in raws:
        packed = raw
        while packed:
            if inflate.eof:  # several members, one after the other
                inflate = zlib.decompressobj(31)
            try:
                piece = inflate.decompress(packed, 2 * MIB)
            except zlib.error as error:
                raise Irregular from error
            packed, size = inflate.unconsumed_tail or inflate.unused_data, size + len(piece)
            if size > allowed:
                raise TraceError(f"the file unpacks to more than {allowed:,} bytes", _BOMB)
            yield piece
    if not inflate.eof:
        raise Irregular


def read(path: Path, limits: Limits) -> tuple[bytes, bool]:
    """The whole text, or what comes before the damage, and whether there is any."""
    parts: list[bytes] = []
    damaged = False
    try:
        for piece in stream(path, limits):
            parts.append(piece)
    except Irregular:
        damaged = True
    text = _utf8(b"".join(parts))
    if not text[:MIB].strip():
        raise TraceError("the file is empty", "Record the trace again; the profiler may not have finished.")
    return text, damaged


def _utf8(raw: bytes) -> bytes:
    """Drop a byte-order mark; turn UTF-16 (PowerShell's `>`) into UTF-8."""
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return raw.decode("utf-16", "replace").encode()
    return raw.removeprefix(b"\xef\xbb\xbf")


_ESCAPES = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_NOT_A_NUMBER = re.compile(rb"([:,\[]\s*)-?(?:NaN|nan|Infinity|inf)(?=\s*[,}\]])")
_CONTROL = bytes(32 if i < 32 else i for i in range(256))


def repair(text: bytes) -> bytes:
    r"""Mend what other writers get wrong: `C:\Users` unescaped, bare NaN, control characters, bad UTF-8."""
    text = text.decode("utf-8", "replace").encode().translate(_CONTROL)
    text = _ESCAPES.sub(lambda m: m.group() if m.group(1) else rb"\\", text)
    return _NOT_A_NUMBER.sub(rb"\1null", text)


_BOUNDARY = re.compile(rb'\}\s*,\s*\{\s*"')


def cut(text: bytes, at: int) -> list[bytes]:
    """Candidates of a valid document that ends with the last whole event before byte `at`, best first."""
    low = max(0, at - 4 * MIB)
    ends = [low + m.start() + 1 for m in _BOUNDARY.finditer(text[low:at])]
    closing = b"]" if text[:MIB].lstrip()[:1] == b"[" else b"]}"
    return [text[:at], *(text[:end] + closing for end in reversed(ends[-4:]))]
