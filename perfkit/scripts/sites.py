"""The calls of a script that a patch edits, recorded as expressions of its files while it trains."""

import collections
import os
import sys
from types import FrameType

import msgspec

from perfkit.worker.failures import is_users

_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_MOST_LOOKS = 16
"""Calls of a role that are examined: examining every one would slow the script down."""


class Frame(msgspec.Struct, frozen=True):
    """A call expression: lines from 1, columns from 0 in bytes of UTF-8, as Python counts."""

    file: str
    line: int
    end_line: int
    column: int
    end_column: int


class Site(msgspec.Struct, frozen=True):
    """A call of a constructor (`loader`, `optimizer`, `scaler`, `compile`) or of a step (`forward` …).

    Args:
        role: what is called.
        frames: the calls in the user's files, the innermost first; none if only libraries were involved.
        library: the package, such as `transformers`, that made the call; empty if the script did.
    """

    role: str
    frames: list[Frame]
    library: str = ""


class Sites:
    """The distinct calls of each role among the first ones: a step may have several, as that of a GAN.

    `scratch`: the root of the mirror in which the script runs.
    """

    def __init__(self, scratch: str) -> None:
        self._scratch = os.path.realpath(scratch)
        self._sites: dict[str, list[Site]] = collections.defaultdict(list)
        self._looks = collections.Counter[str]()

    def note(self, role: str) -> None:
        """Keeps the call under way, if it is among the first of its role and at another place."""
        if self._looks[role] < _MOST_LOOKS:
            self._looks[role] += 1
            site = self.describe(role)
            if all(site.frames[:1] != other.frames[:1] for other in self._sites[role]):
                self._sites[role].append(site)

    def keep(self, site: Site | None) -> None:
        """Keeps a call that was described earlier, in place of any other of its role."""
        if site:
            self._sites[site.role] = [site]

    def all(self) -> list[Site]:
        return [site for sites in self._sites.values() for site in sites]

    def describe(self, role: str) -> Site:
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
        return Site(role, frames, library)

    def _expression(self, frame: FrameType, file: str) -> Frame:
        line, end_line, column, end_column = list(frame.f_code.co_positions())[frame.f_lasti // 2]
        path = os.path.realpath(file).removeprefix(self._scratch)
        return Frame(path, line or frame.f_lineno, end_line or frame.f_lineno, column or 0, end_column or 0)


def _package(file: str) -> str:
    """The installed package of a file; empty for torch, Python and this package."""
    for part in _INSTALLED:
        _, is_installed, rest = file.rpartition(part)
        if is_installed:
            name = rest.split(os.sep)[0].removesuffix(".py")
            return "" if name in ("torch", "perfkit") else name
    return ""
