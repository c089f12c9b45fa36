"""Says what a file is, if it is not a trace, by its first bytes. Files are named, never loaded."""

import gzip
import lzma
import re
import tarfile
import zipfile
import zlib
from typing import Any

from perfkit.additions.trace import data
from perfkit.errors import InvalidValue

ADVICE = "Give a *.pt.trace.json[.gz] of the PyTorch profiler, or a folder or archive with one of each rank"
ENOUGH = 1 << 16  # first bytes, which are enough to recognise a file
GZIP = b"\x1f\x8b"
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.ReadError)
"""The exceptions for a packed file that is cut off or damaged."""


class TraceError(InvalidValue):
    """A file that cannot be read as a profiler trace."""


def _fits(form: dict[str, Any], name: str, begin: bytes) -> bool:
    if "suffix" in form:
        return name.lower().endswith(tuple(form["suffix"]))
    if "holds" in form:
        return re.search(form["holds"].encode(), begin) is not None
    return any(begin.startswith(text.encode("latin-1")) for text in form["begins"])


def refusal(name: str, begin: bytes, is_cut: bool = False) -> TraceError:
    """The error for a file that is not a trace, by its first bytes, unpacked; `is_cut`: the rest failed."""
    if is_cut:
        return TraceError(f"{name}: the file is cut off or damaged before its first event", "Copy it again")
    form = next(form for form in data.table("formats")["format"] if _fits(form, name, begin))
    return TraceError(f"{name}: {form['is']}", form.get("do", ADVICE))
