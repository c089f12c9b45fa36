"""What a watched script says of itself, as typed data."""

import msgspec

from perfkit.recipe import Value, switches
from perfkit.worker.messages import Block, DeviceFacts

EDITS = {
    "scaled_decode": 'call `photo.draft("RGB", size)` between `Image.open` and the first use of the photo',
    "device_prefetch": "copy the next batch on a second CUDA stream in the loop",
    "uint8_copy": "return uint8 from the data set; convert and normalise after `.to(device)`",
    "device_resize": "return small images from the data set; enlarge them after `.to(device)`",
    "zero_grad_set_to_none": "give it to optimizer.zero_grad(set_to_none=...)",
    "accumulation": "call backward on several batches, each loss divided by their number, before the step",
    "compile_mode": "give it to torch.compile(model, mode=...)",
    "ranks": "start the script with torchrun, with DistributedDataParallel in it",
}
"""Switches that cannot be set from outside a script, each with the edit to make instead."""
RANDOM_DATA = "the data set draws random numbers, which in workers come from other seeds"
SETTABLE = tuple(name for name in switches() if name not in EDITS)


class Frame(msgspec.Struct, frozen=True):
    """A call expression: lines from 1, columns from 0 in bytes of UTF-8, as Python counts."""

    file: str
    line: int
    end_line: int
    column: int
    end_column: int


class Site(msgspec.Struct, frozen=True):
    """A call: its `role` is a constructor (`loader`, `optimizer` …) or a part of a step (`forward` …).

    `frames`: the calls in the user's files, the innermost first; none if only libraries were involved.
    `library`: the package, such as `transformers`, that made the call; empty if the script did.
    """

    role: str
    frames: list[Frame]
    library: str = ""


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
    """Some steps: the plain ones as a block, the others by what happened in them.

    `tokens`: elements of integer inputs with two dimensions. `optimizer_s`: seconds of the plain steps in
    optimizers; None on a GPU, which works on by itself. `outside`: steps with a new epoch, an evaluation or a
    checkpoint in them → how many, and their seconds. `steps`: all steps of the script until now.
    """

    block: Block
    tokens: int = 0
    optimizer_s: float | None = None
    outside: dict[str, tuple[int, float]] = {}
    steps: int = 0
    ended: bool = False

    @property
    def step_s(self) -> float:
        """Seconds of a plain step."""
        return self.block.seconds / max(1, len(self.block.step_s))

    @property
    def waiting(self) -> float:
        """The share of the plain steps that is waiting for data."""
        return min(1.0, sum(self.block.data_wait_s) / self.block.seconds)
