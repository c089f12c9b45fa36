"""The constants of the model: everything about kernels that no data sheet says, with the origin of each."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

import msgspec

FILE = "constants.json"


class Constants(msgspec.Struct, frozen=True):
    """One set for all GPUs, models and precisions, as `benchmarks.fit_simulation` writes it."""

    version: int
    """Of the model: what the values mean."""
    values: dict[str, float]
    """By name. Shares of a peak have no unit; names that end in `_us` are microseconds."""
    sources: dict[str, str]
    """Where values come from, by the beginning of their names; the longest that fits holds."""

    def of(self, kind: str, what: str, architecture: str = "") -> float:
        """A class's constant; a class without one has that of the class it belongs to.

        Args:
            kind: a class of kernels, such as `conv.dgrad.strided.nhwc`.
            what: `compute` or `memory`.
            architecture: whose own constants go first (`volta/conv.forward.compute`), where it has any.
        """
        own = f"{architecture}/"
        parts = kind.split(".")
        while parts:
            name = ".".join([*parts, what])
            if own + name in self.values:
                return self.values[own + name]
            if name in self.values:
                return self.values[name]
            parts.pop()
        return self.values[f"other.{what}"]

    def shape(self, name: str, architecture: str) -> float:
        """A constant of how size matters, of an architecture where it has its own."""
        return self.values.get(f"{architecture}/{name}", self.values[name])

    @property
    def digest(self) -> str:
        """Of the version and all values: a prediction is repeated exactly only with the same."""
        content = msgspec.json.encode([self.version, sorted(self.values.items())])
        return hashlib.sha256(content).hexdigest()[:12]


@cache
def constants() -> Constants:
    """The ones in use."""
    content = resources.files("perfkit.simulate").joinpath(FILE).read_bytes()
    return msgspec.json.decode(content, type=Constants)
