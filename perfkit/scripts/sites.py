"""Whose call it was: the exact expressions in the user's own files (`program.sites` has the shape)."""

from __future__ import annotations

import os
import sys
import sysconfig
from types import FrameType
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib")
)
_LOOKS = 16
"""Calls of a role that are looked at: looking at every one would slow the script down."""
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


class Sites:
    """The distinct calls of each kind among its first ones: a step may have several, as that of a GAN."""

    def __init__(self) -> None:
        self._found: dict[str, list[dict[str, Any]]] = {}
        self._looked: dict[str, int] = {}

    def __contains__(self, role: str) -> bool:
        return role in self._found

    def note(self, role: str, subject: str = "", keywords: tuple[str, ...] = (), **more: Any) -> None:
        """Keeps the call that is under way, if it is among the first of its role and at another place.

        Args:
            role: one of `program.sites.ROLES`; this and the others as in `program.sites.Site`.
            subject: the class of what is called.
            keywords: names of arguments.
            more: other fields of a site.
        """
        looked = self._looked.get(role, 0)
        if looked < _LOOKS:
            self._looked[role] = looked + 1
            site = call(role, subject, keywords) | more
            known = self._found.setdefault(role, [])
            if all(site["frames"][:1] != other["frames"][:1] for other in known):
                known.append(site)

    def keep(self, site: dict[str, Any] | None) -> None:
        """Keeps a call that was described earlier, in place of any other of its role."""
        if site:
            self._found[site["role"]] = [site]

    def all(self) -> list[dict[str, Any]]:
        """Plain data of `program.sites.Site`."""
        return [site for found in self._found.values() for site in found]


def call(role: str, subject: str = "", keywords: tuple[str, ...] = ()) -> dict[str, Any]:
    """The call that is under way: the user's frames, and the library that they call, if not torch itself."""
    frames, library = [], ""
    frame: FrameType | None = sys._getframe(2)
    while frame:
        file = frame.f_code.co_filename
        if is_users(file):
            frames.append(_expression(frame, file))
        elif not frames:
            library = _package(file) or library
        frame = frame.f_back
    return {
        "role": role, "frames": frames, "library": library, "subject": subject, "keywords": list(keywords),
    }  # fmt: skip


def is_users(file: str) -> bool:
    """Whether a file belongs to the script, not to an installed library, Python or this package."""
    if file.startswith(("<", HERE)) or any(part in file for part in _INSTALLED):
        return False
    return not file.startswith(_LIBRARIES)


def _expression(frame: FrameType, file: str) -> dict[str, Any]:
    line, end_line, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    return {
        "file": os.path.realpath(file), "line": line or frame.f_lineno,
        "end_line": end_line or frame.f_lineno, "column": column or 0, "end_column": end_column or 0,
        "function": frame.f_code.co_name,
    }  # fmt: skip


def _package(file: str) -> str:
    """The installed package of a file; empty for torch, Python and this package."""
    for part in _INSTALLED:
        if part in file:
            name = file.rsplit(part, 1)[-1].split(os.sep, 1)[0].removesuffix(".py")
            return "" if name == "torch" else name
    return ""
