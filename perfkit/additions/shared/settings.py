"""The settings that processes of a watched script get from the process that starts them."""

import json
from dataclasses import asdict, dataclass, field, replace


@dataclass(frozen=True)
class Settings:
    """The settings of a process, as JSON in its environment."""

    package: str  # perfkit's own file
    scratch: str  # the root of the mirror, in a folder of this process alone
    more: str  # another writable folder
    is_guarded: bool  # whether the kernel refuses what Python does not announce
    watcher: str  # `module:name` of what is called with these settings; empty: nothing is watched
    program: str  # as the user named it
    started: float  # when it started, by `time.time()`
    seed: int
    toggles: dict[str, bool | int | str]  # switches that are set from outside
    samples: int  # of a step, if neither a loader nor a model shows them
    loaders: list[tuple[str, int, int]]  # file, line and column of the loaders that get switches
    observers: list[str]  # further observers to make in the process, as `module:name`
    line: int = -1  # the descriptor of the channel for questions
    address: str = ""  # of a socket: each process that trains connects to it as a rank
    ranked: dict[str, bool | int | str] = field(default_factory=dict)  # switches that are set on all ranks

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def handed_on(self) -> "Settings":
        """The settings of a Python that this process starts; only one of several ranks is watched."""
        return self if self.address else replace(self, watcher="")

    def place(self, file: str) -> str:
        """Where a file of the mirror is for the user."""
        return file.removeprefix(self.scratch)

    def checked(self) -> "Settings":
        """The same settings, with types checked: not at once, as a Python without torch may lack msgspec."""
        import msgspec

        return msgspec.convert(asdict(self), Settings)
