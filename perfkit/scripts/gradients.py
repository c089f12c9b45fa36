"""Backward passes: the loss at their root, gradient scalers, loops without an optimizer."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from perfkit.scripts.script import Script

_LOOKS_FOR_CHANGES = 20
"""Backward passes after which weights that have not been seen to change are no longer compared."""


class Gradients:
    """What happens between forward and optimizer."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.inside = 0
        """Nested backward passes that are under way."""
        self.count = 0
        self.losses: list[torch.Tensor] = []
        """What each of the first backward passes started from, its mean; before any gradient scaling."""
        self.scales = False
        """Whether the script has a gradient scaler that is enabled."""
        self.skipped = 0
        """Steps that a scaler left out because of an overflow."""
        self.step_inside = False
        """Whether an optimizer made a step within the backward pass."""
        self._each_is_step = False
        self._unscaled: torch.Tensor | None = None
        self._weights: float | None = None

    def run(self, plain: Any, roots: Any, args: Any, kwargs: Any) -> Any:
        """One backward pass."""
        script = self.script
        script.models.backward_begins()
        script.loaders.settle()
        script.sites.note("backward")
        root, self._unscaled = roots if self._unscaled is None else self._unscaled, None
        if isinstance(root, list | tuple) and len(root) == 1:
            root = root[0]
        if len(self.losses) < script.settings["losses"] and isinstance(root, torch.Tensor):
            self.losses.append(root.detach().float().mean())
        self.inside += 1
        try:
            if script.profiling:
                with torch.profiler.record_function("backward"):
                    return plain(roots, *args, **kwargs)
            return plain(roots, *args, **kwargs)
        finally:
            self.inside -= 1
            self.count += 1
            if not self.inside:
                self._after()

    def _after(self) -> None:
        steps = self.script.steps
        unknown = not self.script.optimizers.found and not self._each_is_step
        if unknown and self.count <= _LOOKS_FOR_CHANGES:
            self._look_for_changes()
        if self.step_inside or self._each_is_step:
            self.step_inside = False
            self.script.step_is = "a backward pass"
            steps.end()

    def _look_for_changes(self) -> None:
        """Without any optimizer, weights that change between backward passes: the script does it itself."""
        if not self.script.models.found:
            return
        weights = sum(float(p.detach().double().sum()) for p in self.script.models.found[0].parameters())
        if self._weights not in (None, weights):
            self._each_is_step = True
            self.script.note("no optimizer: the script changes its weights itself; a step is a backward pass")
        self._weights = weights


def patch(gradients: Gradients) -> None:
    """From now on every backward pass of this process is seen."""
    script = gradients.script
    plain, scaler = torch.autograd.backward, torch.amp.GradScaler
    plain_make, plain_scale, plain_step = scaler.__init__, scaler.scale, scaler.step

    @functools.wraps(plain)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        return gradients.run(plain, tensors, args, kwargs)

    @functools.wraps(plain_make)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        script.sites.note("scaler", "GradScaler", tuple(sorted(kwargs)))
        if script.toggles.get("amp") == "fp16":
            kwargs["enabled"] = True
        plain_make(self, *args, **kwargs)
        gradients.scales |= self.is_enabled()

    @functools.wraps(plain_scale)
    def scale(self: Any, outputs: Any) -> Any:
        gradients._unscaled = outputs if isinstance(outputs, torch.Tensor) else None
        return plain_scale(self, outputs)

    @functools.wraps(plain_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        script.optimizers.last = None
        result = plain_step(self, optimizer, *args, **kwargs)
        if self.is_enabled() and script.optimizers.last is None:
            gradients.skipped += 1
            script.steps.optimizer_stepped(optimizer)
        return result

    torch.autograd.backward = backward
    scaler.__init__, scaler.scale, scaler.step = make, scale, step  # type: ignore[method-assign]
