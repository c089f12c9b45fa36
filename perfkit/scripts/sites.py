"""The calls that a patch edits, as expressions in the user's files (the shape is `patch_calls.Site`)."""

import os
import sys
import sysconfig
from types import FrameType
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARIES = tuple(
    os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib", "purelib")
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_MOST_LOOKS = 16
"""Calls of a role that are examined: examining every one would slow the script down."""


class Sites:
    """The distinct calls of each role among the first ones: a step may have several, as that of a GAN.

    Args:
        scratch: the root of the mirror in which the script runs; empty if it runs in place.
    """

    def __init__(self, scratch: str = "") -> None:
        self._scratch = os.path.realpath(scratch) if scratch else ""
        self._sites: dict[str, list[dict[str, Any]]] = {}
        self._looks: dict[str, int] = {}

    def note(self, role: str, subject: str = "", keywords: tuple[str, ...] = (), **more: Any) -> None:
        """Keeps the call under way, if it is among the first of its role and at another place.

        Args:
            role: one of `patch_calls.ROLES`.
            subject: the class of what is called.
            keywords: names of arguments.
            more: other fields of a site.
        """
        if self._looks.get(role, 0) >= _MOST_LOOKS:
            return
        self._looks[role] = self._looks.get(role, 0) + 1
        site = self.describe(role, subject, keywords) | more
        known = self._sites.setdefault(role, [])
        if all(site["frames"][:1] != other["frames"][:1] for other in known):
            known.append(site)

    def keep(self, site: dict[str, Any] | None) -> None:
        """Keeps a call that was described earlier, in place of any other of its role."""
        if site:
            self._sites[site["role"]] = [site]

    def all(self) -> list[dict[str, Any]]:
        """Fields of each `patch_calls.Site`."""
        return [site for sites in self._sites.values() for site in sites]

    def describe(self, role: str, subject: str = "", keywords: tuple[str, ...] = ()) -> dict[str, Any]:
        """The call under way: the user's frames, and the library that made it, if it is not torch."""
        frames, library = [], ""
        frame: FrameType | None = sys._getframe(1)
        while frame:
            file = frame.f_code.co_filename
            if is_users(file):
                frames.append(self._expression(frame, file))
            elif not frames:
                library = _package(file) or library
            frame = frame.f_back
        keywords_given = list(keywords)
        return {
            "role": role,
            "frames": frames,
            "library": library,
            "subject": subject,
            "keywords": keywords_given,
        }

    def _expression(self, frame: FrameType, file: str) -> dict[str, Any]:
        line, end_line, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        path = os.path.realpath(file)
        return {
            "file": path.removeprefix(self._scratch),
            "line": line or frame.f_lineno,
            "end_line": end_line or frame.f_lineno,
            "column": column or 0,
            "end_column": end_column or 0,
            "function": frame.f_code.co_name,
        }


def is_users(file: str) -> bool:
    """Whether a file belongs to the script, not to an installed library, Python or this package."""
    if file.startswith(("<", HERE)) or any(part in file for part in _INSTALLED):
        return False
    return not file.startswith(_LIBRARIES)


def _package(file: str) -> str:
    """The installed package of a file; empty for torch, Python and this package."""
    for part in _INSTALLED:
        if part in file:
            name = file.rsplit(part, 1)[-1].split(os.sep, 1)[0].removesuffix(".py")
            return "" if name == "torch" else name
    return ""
