"""What a watched script says of itself, as typed data."""

from enum import StrEnum
from types import SimpleNamespace
from typing import Any

import msgspec

from perfkit import registry
from perfkit.errors import RunFailed
from perfkit.recipe import Value, switches
from perfkit.worker.messages import Block, DeviceFacts

TEXTS: dict[str, dict[str, Any]] = registry.toml(__package__, "texts")
LOSSES = 8  # first losses that are compared
SETTABLE = tuple(name for name in switches() if name not in TEXTS["by_hand"])


def limits(module: str) -> Any:
    """The numbers of a module in `limits.toml`, as attributes."""
    return SimpleNamespace(**registry.toml(__package__, "limits")[module])


class RandomData(StrEnum):
    """Why workers give other samples: the data set draws random numbers, or holds generators."""

    DRAWN = "drawn"
    HELD = "held"


def failed(name: str, kind: type[RunFailed] = RunFailed, **facts: object) -> RunFailed:
    """A failure in the words of `texts.toml`; `facts` are the numbers and names in its sentence."""
    text = TEXTS["failures"][name]
    return kind(text["what"].format(**facts), text["remedy"].format(**facts))


class Frame(msgspec.Struct, frozen=True):
    """A call expression: lines from 1, columns from 0 in bytes of UTF-8, as Python counts."""

    file: str
    line: int
    end_line: int
    column: int
    end_column: int

    @property
    def place(self) -> str:
        """`/home/me/train.py:41`."""
        return f"{self.file}:{self.line}"


class Site(msgspec.Struct, frozen=True):
    """A call: its `role` is a constructor (`loader`, `optimizer` …) or a part of a step (`forward` …)."""

    role: str
    frames: list[Frame]  # in the user's files, the innermost first; none if only libraries were involved
    library: str = ""  # the package that made the call, such as `transformers`; empty if the script did

    @property
    def place(self) -> str:
        """That of the innermost call in the user's files; empty if there is none."""
        return self.frames[0].place if self.frames else ""


class ScriptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A script after its first steps: `script` of `watch` in docs/json.md."""

    device: str
    facts: DeviceFacts
    startup_s: float = 0.0
    step_s: float = 0.0
    models: list[str] = []
    parameters: int = 0
    optimizers: list[str] = []
    has_fused: bool = True
    loader: str = ""
    step_is: str = ""
    samples_per_step: int = 0
    convolves: bool = False
    settings: dict[str, Value] = {}
    refused: dict[str, str] = {}
    sites: list[Site] = []
    notes: list[str] = []


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Some plain steps, without anything else in them; `ended`: so has the script."""

    block: Block
    ended: bool = False

    @property
    def step_s(self) -> float:
        return self.block.seconds / max(1, len(self.block.step_s))

    @property
    def waiting(self) -> float:
        return min(1.0, sum(self.block.data_wait_s) / self.block.seconds)
