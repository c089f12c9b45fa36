"""The watched script, from inside its process: what is known of it, and how it is steered at its steps.

`install` is called once torch has been imported. From then on loaders, models, backward passes and
optimizers report to one `Script`, which hands each step to `commands.Server` at its end. At those moments,
and only there, the script waits while the parent decides what comes next.
"""

from __future__ import annotations

import atexit
import functools
import os
import random
import statistics
import sys
from typing import Any

import torch

from perfkit.scripts import commands, gradients, loaders, models, optimizers, toggles
from perfkit.scripts.outputs import Outputs
from perfkit.scripts.sites import Sites
from perfkit.scripts.steps import Step, Steps


class Script:
    """All that is known of the script of this process.

    Args:
        settings: from the parent: `socket`, `package`, `toggles`, `loaders` (places of the training loader's
            constructor, if known), `seed` (None leaves it alone), `losses`, `dropout_off`, `scratch`.
        outputs: what it writes.
    """

    FIRST = 3
    """Steps during which more is looked at than their time."""
    LOOKS = 12
    """Steps from which the usual one is told."""

    def __init__(self, settings: dict[str, Any], outputs: Outputs) -> None:
        self.settings, self.outputs = settings, outputs
        self.toggles: dict[str, Any] = dict(settings["toggles"])
        self.notes: list[str] = []
        self.refused: dict[str, str] = {}
        self.sites = Sites()
        self.steps = Steps(self._on_steps)
        self.loaders = loaders.Loaders(self)
        self.models = models.Models(self)
        self.gradients = gradients.Gradients(self)
        self.optimizers = optimizers.Optimizers(self)
        self._seen: list[Step] = []
        self.server = commands.Server(self)
        self.usual_samples = self.usual_tokens = 0
        """Of a usual step of this rank."""
        self.first_graphs = 0
        """Graphs that torch.compile had made after the first steps."""
        self.step_is = ""
        """What counts as a step, where that is not an optimizer's."""
        self.profiling = False
        """Whether the profiler records: forward and backward get their names then."""
        self.started_processes = 0

    def note(self, text: str) -> None:
        """Keeps a remark for the parent, once."""
        if text not in self.notes:
            self.notes.append(text)

    def refuse(self, switch: str, reason: str) -> None:
        """A switch cannot be set here; the first reason counts."""
        self.refused.setdefault(switch, reason)

    def apply_late(self) -> None:
        """Process-wide settings once more, just before the first step: the script may have set them since."""
        toggles.apply_global(self)

    def step_in_words(self) -> str:
        """What counts as a step."""
        found = self.optimizers.found
        if self.step_is or not found:
            return self.step_is
        names = ", ".join(type(optimizer).__name__ for optimizer in found)
        return f"a step of {names}" if len(found) == 1 else f"a step of each of {names}"

    def _on_steps(self, steps: list[Step]) -> None:
        if not self._seen:
            _patch_safetensors(self)
        if not self._seen or self.steps.count <= self.LOOKS:
            self._seen += steps
            self.usual_samples = statistics.median_low(step.samples for step in self._seen)
            self.usual_tokens = statistics.median_low(step.tokens for step in self._seen)
            self.first_graphs = models.compile_counters()["graphs"]
        if self.steps.count >= self.FIRST:
            self.models.stop_looking()
        self.server.at_steps(steps)


def install(settings: dict[str, Any], outputs: Outputs) -> None:
    """Makes the script of this process report from now on."""
    script = Script(settings, outputs)
    if settings["seed"] is not None:
        _seed(settings["seed"])
    toggles.apply_global(script)
    loaders.patch(script.loaders)
    models.patch(script.models)
    gradients.patch(script.gradients)
    optimizers.patch(script.optimizers)
    toggles.patch_copies(script)
    commands.patch_ends(script.server)
    _patch_save(script)
    os.register_at_fork(after_in_child=script.server.forget)
    atexit.register(script.server.ended)


def _patch_save(script: Script) -> None:
    """Checkpoints are written without Python's `open`: by torch, and by safetensors once that is imported."""
    plain = torch.save

    @functools.wraps(plain)
    def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        script.steps.now.marks.add("checkpoint")
        if isinstance(f, str | os.PathLike):
            script.outputs.before(os.fsdecode(f))
        plain(obj, f, *args, **kwargs)

    torch.save = save


def _patch_safetensors(script: Script) -> None:
    module: Any = sys.modules.get("safetensors.torch")
    if module is None:
        return
    plain = module.serialize_file

    @functools.wraps(plain)
    def serialize_file(tensors: Any, filename: Any, *args: Any, **kwargs: Any) -> Any:
        script.steps.now.marks.add("checkpoint")
        script.outputs.before(os.fsdecode(filename))
        return plain(tensors, filename, *args, **kwargs)

    module.serialize_file = serialize_file


def _seed(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)
    numpy: Any = sys.modules.get("numpy")
    if numpy:
        numpy.random.seed(seed)
