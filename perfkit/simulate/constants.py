"""The constants of the model: everything about kernels that no data sheet says, with the origin of each."""

import hashlib
from functools import cache
from importlib import resources

import msgspec

FILE = "constants.json"


class Constants(msgspec.Struct, frozen=True):
    """One set for all GPUs, models and precisions, as `benchmarks.fit_simulation` writes it."""

    version: int
    """Version of the model: what the values mean."""
    values: dict[str, float]
    """Shares of a peak have no unit; names that end in `_us` are microseconds."""
    sources: dict[str, str]
    """Origins by name prefix; the longest prefix wins."""

    def share(self, kind: str, limit: str, architecture: str = "") -> float:
        """The share of a peak that a class of kernels reaches; a class without one has that of its parent.

        Args:
            kind: a class of kernels, such as `conv.dgrad.strided.nhwc`.
            limit: `compute` or `memory`.
            architecture: whose constants come first (`volta/conv.forward.compute`).
        """
        parts = kind.split(".")
        while parts:
            name = ".".join([*parts, limit])
            for key in (f"{architecture}/{name}", name):
                if key in self.values:
                    return self.values[key]
            parts.pop()
        return self.values[f"other.{limit}"]

    def shape(self, name: str, architecture: str) -> float:
        """A constant of how size matters, the architecture's where it has one."""
        return self.values.get(f"{architecture}/{name}", self.values[name])

    @property
    def digest(self) -> str:
        """Identifies the version and all values: the same digest gives the same predictions."""
        content = msgspec.json.encode([self.version, sorted(self.values.items())])
        return hashlib.sha256(content).hexdigest()[:12]


@cache
def constants() -> Constants:
    """The constants in use."""
    content = resources.files("perfkit.simulate").joinpath(FILE).read_bytes()
    return msgspec.json.decode(content, type=Constants)
