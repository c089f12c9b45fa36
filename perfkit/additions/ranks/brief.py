"""Steps of a rank whose parts are only timed: to note all of one takes 0.3 ms, as its code leaves the caches.

Everything is noted in the first steps, and then in a few of each `LIMIT.every`: by their numbers, so that all
ranks note the same ones. Where anything but a usual pass comes, the rest of its step is noted, too.
Inputs are counted in all steps: a rank may get larger ones at any time, and be late for them.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch

from perfkit.additions.ranks.messages import LIMIT
from perfkit.additions.scripts.batches import TRAINING
from perfkit.additions.scripts.loaders import Loaders
from perfkit.additions.scripts.script import Callback, Script, ScriptStep, is_capturing
from perfkit.additions.scripts.training import Models, Updates, trained_by
from perfkit.additions.shared.clock import clock
from perfkit.additions.shared.tensors import samples_of
from perfkit.worker.checks import compiled_graphs


class BriefSteps(Callback):
    """Decides which steps are only timed; it comes after the other callbacks."""

    def __init__(self, script: Script, noted: Callable[[ScriptStep], None]) -> None:
        self.is_on = False
        self.is_possible = False  # once somebody listens, unless an optimizer steps within a backward pass
        self._script = script
        self._noted = noted  # is told of each of these
        self._last: Any = None  # the optimizer that ends a step
        self._graphs = 0  # that were compiled before the steps that are only timed

    def on_steps(self, steps: list[ScriptStep]) -> None:
        """Not all of the next step is noted, once enough are."""
        script = self._script
        ending = (each for each in script.optimizers if trained_by(each) == script.steps.last)
        self._last = next(ending, None)
        self._graphs = compiled_graphs()
        is_at_rest = not script.is_between and script.fetching_since is None  # no batch waits for its pass
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
        """Has the rest of the step under way noted."""
        self.is_on = False

    def updated(self, optimizer: Any) -> None:
        """An optimizer has made a usual step."""
        steps = self._script.steps
        is_loaded = steps.inputs.are_loaded and steps.now.samples > 0  # as in most scripts
        if not is_loaded:
            steps.inputs.share(steps.now, trained_by(optimizer))
        if optimizer is not self._last:
            return
        if self._graphs != compiled_graphs():  # which `Script` notes
            self.note_all()
            steps.updated(trained_by(optimizer))
            return
        ended = steps.now
        ended.seconds = clock() - steps.since
        if not is_loaded:
            steps.inputs.complete([ended])
        steps.count += 1
        self._noted(ended)
        steps.now = ScriptStep()
        steps.since = clock()
        self.is_on = self._is_due()


class OfRank(Callback):
    """What is listened to in a rank: it knows whether the step under way is only timed."""

    def __init__(self, script: Script, brief: BriefSteps) -> None:
        self._brief = brief
        super().__init__(script)  # type: ignore[call-arg]


class RankLoaders(OfRank, Loaders):
    """The loaders of a rank."""

    def _fetch(self, plain: Any, iterator: Any) -> Any:
        is_trainer = threading.get_ident() == self._script.steps.trainer
        if not self._brief.is_on or self._is_fetching or not is_trainer:
            return super()._fetch(plain, iterator)
        epoch = iterator._perfkit
        trains = self._ledger.kind(epoch.loader) == TRAINING and torch.is_grad_enabled()
        if not epoch.has_begun or not trains:
            self._brief.note_all()
            return super()._fetch(plain, iterator)
        self._is_fetching = True
        try:
            batch = self._script.do("waiting", plain, iterator)
        finally:
            self._is_fetching = False
        indices = epoch.indices.popleft() if epoch.indices else None
        self._script.steps.now.samples += samples_of(batch, indices)
        return batch


class RankModels(OfRank, Models):
    """The models of a rank; a call that evaluates has the rest of its step noted."""

    def _called(self, model: Any, call: Any, /, *args: Any, **kwargs: Any) -> Any:
        script = self._script
        if self._brief.is_on and self._trains(model) and not script.steps.in_backward:
            output = script.do("forward", call, *args, **kwargs)
            self._feed(args or kwargs)
            return output
        return super()._called(model, call, *args, **kwargs)


class RankUpdates(OfRank, Updates):
    """The backward passes and optimizers of a rank."""

    def _backward(self, plain: Any, tensors: Any, *args: Any, **kwargs: Any) -> None:
        script, steps = self._script, self._script.steps
        if not self._brief.is_on or steps.in_backward:
            super()._backward(plain, tensors, *args, **kwargs)
            return
        steps.inputs.take(steps.now)
        self._unscaled = None
        steps.in_backward = True
        try:
            script.do("backward", plain, tensors, *args, **kwargs)
        finally:
            steps.in_backward = False
        script.backwards += 1

    def _step(self, plain: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        script = self._script
        if not self._brief.is_on:
            return super()._step(plain, optimizer, *args, **kwargs)
        has_closure = (args or kwargs) and any(each is not None for each in (*args, *kwargs.values()))
        if script.steps.in_backward:  # its step ends with the next one's first pass
            self._brief.is_possible = False
        is_usual = not has_closure and self._brief.is_possible and optimizer in script.optimizers
        if not is_usual or is_capturing():
            self._brief.note_all()
            return super()._step(plain, optimizer, *args, **kwargs)
        result = script.do("optimizer", plain, optimizer, *args, **kwargs)
        self._count += 1
        self._brief.updated(optimizer)
        return result
