"""Bytes of a trace file: bounded decompression, and repair of files that were written badly."""

from __future__ import annotations

import re
import zlib
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


@dataclass(frozen=True, slots=True)
class Source:
    """The text of a file and what had to be done to get it."""

    path: str
    text: bytes
    truncated: bool = False
    notes: tuple[str, ...] = ()


def read(path: Path, limits: Limits) -> Source:
    """Read a `.json` or `.json.gz` (told apart by content, not by name)."""
    try:
        if path.stat().st_size > limits.max_bytes:
            raise TraceError(
                f"{path.name} is larger than {limits.max_bytes:,} bytes", "Raise Limits.max_bytes."
            )
        raw = path.read_bytes()
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror or error}", "Check the path.") from error
    truncated = False
    if raw[:2] == b"\x1f\x8b":
        raw, truncated = _gunzip(raw, path.name, limits)
    if not raw[:MIB].strip():
        raise TraceError(
            f"{path.name} is empty", "Record the trace again; the profiler may not have finished."
        )
    return Source(str(path), _utf8(raw), truncated, ("gzip data ends early or is damaged",) * truncated)


def _gunzip(raw: bytes, name: str, limits: Limits) -> tuple[bytes, bool]:
    """Unpack at most what the limits allow; True where the data end early or are damaged."""
    allowed = min(limits.max_bytes, max(64 * MIB, int(len(raw) * limits.max_ratio)))
    inflate = zlib.decompressobj(31)
    try:
        text = inflate.decompress(raw, allowed)
    except zlib.error:
        return _salvage_gzip(raw, allowed), True
    if inflate.eof and inflate.unused_data[:2] == b"\x1f\x8b":  # several members one after the other
        limits = Limits(limits.max_bytes - len(text), limits.max_ratio)
        more, truncated = _gunzip(inflate.unused_data, name, limits)
        return text + more, truncated
    if not inflate.eof and (inflate.unconsumed_tail or len(text) >= allowed):
        raise TraceError(
            f"{name} unpacks to more than {allowed:,} bytes from {len(raw):,}",
            "No profiler trace shrinks that much; if you trust it, raise Limits.max_bytes and max_ratio.",
        )
    return text, not inflate.eof


def _salvage_gzip(raw: bytes, allowed: int) -> bytes:
    """What can be unpacked before the first damaged block."""
    inflate, parts, size = zlib.decompressobj(31), [], 0
    try:
        for at in range(0, len(raw), 4096):
            parts.append(inflate.decompress(raw[at : at + 4096], max(allowed - size, 1)))
            size += len(parts[-1])
            if size >= allowed:
                break
    except zlib.error:
        pass
    return b"".join(parts)


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
