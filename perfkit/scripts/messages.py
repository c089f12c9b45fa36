"""What a watched script says of itself, as typed data."""

import msgspec

from perfkit.recipe import Value, switches
from perfkit.results.run import Mechanism
from perfkit.scripts.sites import Site
from perfkit.worker.messages import Block, DeviceFacts

EDITS = {
    "batched_fetch": "write `__getitems__` in the data set, and a collate_fn that takes its result",
    "device_prefetch": "copy the next batch on a second CUDA stream in the loop",
    "uint8_copy": "return uint8 from the data set; convert and normalise after `.to(device)`",
    "device_resize": "return small images from the data set; enlarge them after `.to(device)`",
    "accumulation": "call backward on several batches, each loss divided by their number, before the step",
    "activation_checkpointing": "call the blocks through torch.utils.checkpoint.checkpoint",
    "ranks": "start the script with torchrun, with DistributedDataParallel in it",
    "no_sync": "enter model.no_sync() for all but the last batch of a step",
}
"""Switches that cannot be set from outside a script, each with the edit to make instead."""
SETTABLE = tuple(name for name in switches() if name not in EDITS)


class ScriptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A script after its first steps: what trains, what is set, what can be set from outside."""

    device: str
    """`cpu`, `cuda` or `mps`."""
    facts: DeviceFacts
    models: list[str] = []
    parameters: int = 0
    optimizers: list[str] = []
    loader: str = ""
    """Class of the training loader's data set; empty without a `DataLoader`."""
    step_is: str = ""
    backwards_per_step: float = 1.0
    samples_per_step: int = 0
    tokens_per_step: int = 0
    """Elements of integer inputs with two dimensions; 0 if there are none."""
    convolves: bool = False
    random_data: bool = False
    """Whether the data set drew random numbers in this process: with workers they come from other seeds."""
    settings: dict[str, Value] = {}
    """The switches as they are now, as far as they can be read."""
    mechanisms: list[Mechanism] = []
    """The proof of each switch that was set from outside."""
    refused: dict[str, str] = {}
    """Switches that cannot be set from outside here: the reason and, where there is one, the edit."""
    sites: list[Site] = []
    notes: list[str] = []
    written: list[str] = []
    """Files outside of its scratch folder that the script opened for writing."""


_SUMMED = ("block", "tokens", "system_s", "page_faults")


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Some steps: the plain ones as a block, the others by what happened in them."""

    block: Block
    tokens: int = 0
    optimizer_s: float | None = None
    """Seconds of the plain steps in optimizers; None on a GPU, which works on by itself."""
    system_s: float = 0.0
    """Processor time that the system took for the process in all steps."""
    page_faults: int = 0
    outside: dict[str, tuple[int, float]] = {}
    """Steps with a new epoch, an evaluation or a checkpoint in them: how many, and their seconds."""
    skipped: int = 0
    """Steps that a gradient scaler skipped."""
    steps: int = 0
    """All steps of the script until now."""
    ended: bool = False

    @property
    def step_s(self) -> float:
        """Seconds of a plain step."""
        return self.block.seconds / max(1, len(self.block.step_s))

    @property
    def waiting(self) -> float:
        """The share of the plain steps that is waiting for data."""
        return min(1.0, sum(self.block.data_wait_s) / self.block.seconds)

    def __add__(self, later: "Observation") -> "Observation":
        """Both as one; `later` came after this one."""
        outside = dict(self.outside)
        for name, (count, seconds) in later.outside.items():
            before = outside.get(name, (0, 0.0))
            outside[name] = before[0] + count, before[1] + seconds
        timed = None if self.optimizer_s is None else self.optimizer_s + (later.optimizer_s or 0.0)
        sums = {name: getattr(self, name) + getattr(later, name) for name in _SUMMED}
        return msgspec.structs.replace(later, optimizer_s=timed, outside=outside, **sums)
