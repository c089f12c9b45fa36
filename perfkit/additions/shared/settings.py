"""What the processes of a watched script are told by whoever starts them."""

import json
from dataclasses import asdict, dataclass, field, replace


@dataclass(frozen=True)
class Settings:
    """The settings of a process, as JSON in its environment."""

    package: str  # perfkit's own file
    scratch: str  # the root of the mirror, in a folder of this process alone
    more: str  # another writable folder
    is_guarded: bool  # whether the kernel refuses what Python does not announce
    watcher: str  # `module:name` of what is called with these settings; empty where nothing is watched
    program: str  # as the user has named it
    started: float  # when it was, by `time.time()`
    seed: int
    toggles: dict[str, bool | int | str]  # switches that are set from outside
    samples: int  # of a step of which nothing tells
    loaders: list[tuple[str, int, int]]  # file, line and column of those that take switches
    observers: list[str]  # made to look at it further, as `module:name`
    line: int = -1  # the descriptor of the line to whoever asks
    address: str = ""  # of a socket to which each process that trains comes instead, as a rank
    ranked: dict[str, bool | int | str] = field(default_factory=dict)  # switches that are set on all ranks

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def handed_on(self) -> "Settings":
        """Those of a Python that this process starts, which is watched only where ranks come."""
        return self if self.address else replace(self, watcher="")

    def checked(self) -> "Settings":
        """These, each of its type; asked where torch is, as other Pythons may have no msgspec."""
        import msgspec

        return msgspec.convert(asdict(self), Settings)
