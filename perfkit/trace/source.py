"""The text of a trace file: bounded decompression, and repair of files that were written badly."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perfkit.errors import TraceError

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """How large the text of a file may be, so that a zip bomb ends in an error.

    Attributes:
        max_bytes: largest JSON text, in bytes, after decompression.
        max_ratio: largest unpacked / packed size beyond the first 64 MiB; profiler traces have 20–60,
            deflate's own limit is 1032.
    """

    max_bytes: int = 4096 * MIB
    max_ratio: float = 300.0


class Irregular(Exception):
    """The file is not as the profiler writes it: it must be read as a whole, and perhaps repaired."""


def stream(path: Path, limits: Limits) -> Iterator[bytes]:
    """The text of a `.json` or `.json.gz` (recognised by content), in pieces of at most 2 MiB.

    Raises:
        Irregular: the gzip data end early or are damaged; everything before was yielded.
        TraceError: the file cannot be read or is larger than allowed.
    """
    allowed, total = limits.max_bytes, 0
    try:
        with path.open("rb") as file:
            if packed := file.read(2) == b"\x1f\x8b":
                size = path.stat().st_size
                allowed = min(allowed, max(64 * MIB, int(size * limits.max_ratio)))
                step = max(512, min(MIB // 8, size // 32))  # at most this much is lost before damage
            file.seek(0)
            pieces = iter(lambda: file.read(step if packed else MIB), b"")
            for piece in _inflate(pieces) if packed else pieces:
                total += len(piece)
                if total > allowed:
                    raise TraceError(
                        f"the file {'unpacks to' if packed else 'has'} more than {allowed:,} bytes",
                        "If you trust the file, raise Limits.max_bytes and Limits.max_ratio.",
                    )
                yield piece
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}", "Check the path.") from error


def _inflate(pieces: Iterator[bytes]) -> Iterator[bytes]:
    inflate = zlib.decompressobj(31)
    for piece in pieces:
        packed = piece
        while packed:
            if inflate.eof:  # several members, one after the other
                inflate = zlib.decompressobj(31)
            try:
                yield inflate.decompress(packed, 2 * MIB)
            except zlib.error as error:
                raise Irregular from error
            packed = inflate.unconsumed_tail or inflate.unused_data
    if not inflate.eof:
        raise Irregular


def read(path: Path, limits: Limits) -> tuple[bytes, bool]:
    """The whole text, or what comes before the damage, and whether there is any damage."""
    parts: list[bytes] = []
    damaged = False
    try:
        parts.extend(stream(path, limits))
    except Irregular:
        damaged = True
    text = b"".join(parts)
    if text[:2] in (b"\xff\xfe", b"\xfe\xff"):  # PowerShell's `>` writes UTF-16
        text = text.decode("utf-16", "replace").encode()
    text = text.removeprefix(b"\xef\xbb\xbf")
    if not text[:MIB].strip():
        raise TraceError("the file is empty", "Record the trace again; the profiler may not have finished.")
    return text, damaged


_ESCAPES = re.compile(rb'\\(?:(["\\/bfnrt]|u[0-9a-fA-F]{4})|)')
_NOT_A_NUMBER = re.compile(rb"([:,\[]\s*)-?(?:NaN|nan|Infinity|inf)(?=\s*[,}\]])")
_CONTROL = bytes(32 if i < 32 else i for i in range(256))


def repair(text: bytes) -> bytes:
    r"""Fixes what other writers get wrong: `C:\Users` unescaped, bare NaN, control characters, bad UTF-8."""
    text = text.decode("utf-8", "replace").encode().translate(_CONTROL)
    text = _ESCAPES.sub(lambda m: m.group() if m.group(1) else rb"\\", text)
    return _NOT_A_NUMBER.sub(rb"\1null", text)


_BOUNDARY = re.compile(rb'\}\s*,\s*\{\s*"')


def cut(text: bytes, at: int) -> list[bytes]:
    """Candidates for a valid document that ends with the last whole event before byte `at`, best first."""
    low = max(0, at - 4 * MIB)
    ends = [low + match.start() + 1 for match in _BOUNDARY.finditer(text[low:at])]
    return [text[:at], *(text[:end] + b"]}" for end in reversed(ends[-4:]))]
