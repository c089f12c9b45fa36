"""What a watched script is asked beyond the commands of a measuring process, and what it says of itself.

Only the parent imports this module; the script's side writes plain data of the same shape, since its
interpreter may have neither msgspec nor numpy.
"""

from __future__ import annotations

import msgspec

from perfkit.recipe import Value
from perfkit.results.run import Mechanism
from perfkit.scripts.patch_calls import Site
from perfkit.worker.messages import Block, DeviceFacts


class ScriptFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A script after its first steps: what trains, what is set, what can be set from outside."""

    device: str
    """`cpu`, `cuda` or `mps`."""
    facts: DeviceFacts
    rank: int = 0
    world: int = 1
    models: list[str] = []
    """Classes of the outermost modules."""
    parameters: int = 0
    optimizers: list[str] = []
    """Classes, in the order in which they step."""
    loader: str = ""
    """Class of the training loader's data set; empty without a `DataLoader`."""
    step_is: str = ""
    """What counts as a step, in words."""
    backwards_per_step: float = 1.0
    samples_per_step: int = 0
    tokens_per_step: int = 0
    """Of integer inputs with two dimensions; 0 if there are none."""
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
    """Files that the script opened for writing, those of its scratch folder apart."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Some steps: the plain ones as a block, the others by what happened in them."""

    block: Block
    tokens: int = 0
    optimizer_s: float | None = None
    """Of the plain steps' seconds, those in optimizers; None on a GPU, which works on by itself."""
    system_s: float = 0.0
    """Processor time that the system took for the process, of all steps …"""
    page_faults: int = 0
    """… and pages of memory that it gave it, as they were first touched."""
    outside: dict[str, tuple[int, float]] = {}
    """Steps with a new epoch, an evaluation or a checkpoint in them: how many, and their seconds."""
    skipped: int = 0
    """Steps that a gradient scaler skipped."""
    steps: int = 0
    """All steps of the script until now."""
    ended: bool = False
    """Whether the script came to its end."""
