"""Steps of a rank whose parts are only timed, as a full record takes 0.3 ms: its code leaves the caches.

The first steps are noted in full, then a few of each `LIMIT.every`. Their numbers decide which, so that all
ranks note the same ones. After anything but a usual pass, the rest of its step is noted in full, too.
Inputs are counted in all steps: a rank may get larger ones at any time, and be late for them.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch

from perfkit.additions.ranks.messages import LIMIT
from perfkit.additions.scripts.batches import KIND, TRAINING
from perfkit.additions.scripts.loaders import Loaders
from perfkit.additions.scripts.script import Callback, Script, ScriptStep, is_capturing
from perfkit.additions.scripts.training import Models, Updates, trained_by
from perfkit.additions.shared.tensors import samples_of
from perfkit.worker.checks import compiled_graphs


class BriefSteps(Callback):
    """Decides which steps are only timed; the last of the callbacks."""

    def __init__(self, script: Script, on_timed: Callable[[list[ScriptStep]], None]) -> None:
        self.is_on = False
        self.is_possible = False  # whether somebody listens, and no optimizer steps within a backward pass
        self._script = script
        self._on_timed = on_timed  # is called with each step that was only timed
        self._last: Any = None  # the optimizer whose step is the last one of a training step
        self._graphs = 0  # compiled before the steps that are only timed
        self._until = 0  # the steps that end before some are noted in full again

    def on_steps(self, steps: list[ScriptStep]) -> None:
        """Decides about the next step after one that was noted in full."""
        script = self._script
        matching = (each for each in script.updates.optimizers if trained_by(each) == script.steps.last)
        self._last = next(matching, None)
        self._graphs = compiled_graphs()
        self._until = script.steps.count - script.steps.count % LIMIT.every + LIMIT.every
        parts = script.parts
        is_at_rest = not parts.is_between and parts.fetching_since is None  # no batch waits for its pass
        is_usual = self.is_possible and self._last and not script.toggles and is_at_rest
        self.is_on = bool(is_usual and self._is_due())

    def _is_due(self) -> bool:
        count = self._script.steps.count
        return bool(count >= LIMIT.first and count % LIMIT.every >= LIMIT.noted)

    def on_evaluation(self) -> None:
        self.note_all()

    def on_mode(self, trains: bool) -> None:
        if not trains:
            self.note_all()

    def note_all(self) -> None:
        """Notes the rest of the step under way in full."""
        self.is_on = False

    def updated(self, optimizer: Any) -> None:
        """Notes a usual step of an optimizer, which may end the training step."""
        steps = self._script.steps
        is_loaded = steps.inputs.are_loaded and steps.now.samples > 0  # as in most scripts
        if not is_loaded:
            steps.inputs.share(steps.now, trained_by(optimizer))
        if optimizer is not self._last:
            return
        if self._graphs != compiled_graphs():  # `Script` marks the step
            self.note_all()
            steps.updated(trained_by(optimizer))
            return
        steps.end(self._on_timed)
        self.is_on = steps.count < self._until


class RankLoaders(Loaders):
    """The loaders of a rank."""

    def __init__(self, script: Script, brief: BriefSteps) -> None:
        super().__init__(script)
        self._brief = brief

    def _fetch(self, plain: Any, iterator: Any) -> Any:
        is_trainer = threading.get_ident() == self._script.steps.trainer
        if not self._brief.is_on or self._is_fetching or not is_trainer:
            return super()._fetch(plain, iterator)
        epoch = iterator._perfkit
        trains = epoch.loader.__dict__.get(KIND) == TRAINING and torch.is_grad_enabled()
        if not epoch.has_begun or not trains:
            self._brief.note_all()
            return super()._fetch(plain, iterator)
        batch, indices = self._take("waiting", plain, iterator)
        self._script.steps.now.samples += samples_of(batch, indices)
        return batch


class RankModels(Models):
    """The models of a rank; after a call that evaluates, the rest of the step is noted in full."""

    def __init__(self, script: Script, brief: BriefSteps) -> None:
        super().__init__(script)
        self._brief = brief

    def _called(self, model: Any, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        script = self._script
        is_usual = model.training and torch.is_grad_enabled()
        if self._brief.is_on and is_usual and not script.steps.in_backward:
            output = script.parts.do("forward", call, *args, **kwargs)
            self._feed(args or kwargs)
            return output
        return super()._called(model, call, *args, **kwargs)


class RankUpdates(Updates):
    """The backward passes and optimizers of a rank."""

    def __init__(self, script: Script, brief: BriefSteps) -> None:
        super().__init__(script)
        self._brief = brief

    def _backward(self, plain: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
        steps = self._script.steps
        if not self._brief.is_on or steps.in_backward:
            super()._backward(plain, tensors, *args, **kwargs)
        else:
            steps.inputs.take(steps.now)
            self._pass(plain, tensors, *args, **kwargs)

    def _step(self, plain: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        script = self._script
        if not self._brief.is_on:
            return super()._step(plain, optimizer, *args, **kwargs)
        has_closure = (args or kwargs) and any(value is not None for value in (*args, *kwargs.values()))
        if script.steps.in_backward:  # the training step ends with the first pass of the next one
            self._brief.is_possible = False
        is_usual = not has_closure and self._brief.is_possible and optimizer in self._seen.optimizers
        if not is_usual or is_capturing():
            self._brief.note_all()
            return super()._step(plain, optimizer, *args, **kwargs)
        result = script.parts.do("optimizer", plain, optimizer, *args, **kwargs)
        self._count += 1
        self._brief.updated(optimizer)
        return result
