"""What a watched script says of itself, as typed data."""

import tomllib
from importlib import resources

import msgspec

from perfkit.recipe import Value, switches
from perfkit.worker.messages import Block, DeviceFacts

EDITS: dict[str, str] = tomllib.loads(
    resources.files(__package__).joinpath("by_hand.toml").read_text(encoding="utf-8")
)
"""Switches that cannot be set from outside a script, each with the edit to make instead."""
RANDOM_DATA = "the data set draws random numbers, which in workers come from other seeds"
OWN_RANDOM_DATA = "the data set holds a random generator ({}), of which each worker has a copy"
FAIR = (
    "to compare fairly, seed a generator for each sample by its index (torch.Generator().manual_seed(index)) "
    "in both scripts, or give both as many workers"
)
"""How scripts are compared whose random numbers depend on their workers."""
LOSSES = 8
"""First losses that are compared."""
SETTABLE = tuple(name for name in switches() if name not in EDITS)


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
    """A call: its `role` is a constructor (`loader`, `optimizer` …) or a part of a step (`forward` …).

    `frames`: the calls in the user's files, the innermost first; none if only libraries were involved.
    `library`: the package, such as `transformers`, that made the call; empty if the script did.
    """

    role: str
    frames: list[Frame]
    library: str = ""

    @property
    def place(self) -> str:
        """That of the innermost call in the user's files; empty if there is none."""
        return self.frames[0].place if self.frames else ""


class ScriptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A script after its first steps: what trains, what is set, what can be set from outside.

    `startup_s`: from the start of the process to the first batch; `step_s`: the step before the first
    question. `has_fused`: each optimizer has a fused implementation. `loader`: the class of the data set,
    empty without a `DataLoader`. `settings`: the switches as they are, as far as they can be read. `refused`:
    switches that cannot be set from outside here, and the reason.
    """

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
