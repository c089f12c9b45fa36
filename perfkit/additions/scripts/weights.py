"""Weights that do not train: no optimizer has them, they are frozen, or their learning rate is 0."""

import os
import sys
from collections.abc import Collection, Container, Mapping
from typing import Any

import torch

from perfkit.additions.scripts.messages import ZeroRate, limits
from perfkit.additions.scripts.script import Script
from perfkit.additions.shared.positions import places
from perfkit.additions.shared.tensors import weights_of
from perfkit.process.failures import is_users

LIMIT = limits("weights")
_ROLES = ("optimizer", "backward", "step")  # calls in files that may also read gradients


class ZeroRates:
    """Notes which weights have gradients, and a learning rate of 0 in every step that is looked at."""

    def __init__(self) -> None:
        self.still: dict[int, int] | None = None  # their sizes, by `id`; None before the first look
        self._moving = dict[int, int]()  # the same of weights that had another rate in some step

    def look(self, optimizers: Collection[Any]) -> None:
        """Looks at the step that has just ended; as a rule only the first look finds anything to do."""
        if self.still is not None and not self.still:
            return
        at_zero = dict[int, int]()
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                stays = _stays(optimizer, group)
                for weight in group["params"]:
                    if weight.grad is not None:
                        has_hook = weight._backward_hooks or weight._post_accumulate_grad_hooks
                        sizes = at_zero if stays and not has_hook else self._moving
                        sizes[id(weight)] = weight.numel()
        self.still = {weight: size for weight, size in at_zero.items() if weight not in self._moving}

    def found(self, script: Script, backward_s: float | None = None) -> ZeroRate | None:
        """Those weights, if others train, and if the script does not read gradients itself.

        Args:
            script: The script whose steps were looked at.
            backward_s: Seconds of backward passes that lead to their gradients alone, if that is known.
        """
        count, others = sum((self.still or {}).values()), sum(self._moving.values())
        if not (count and others) or _reads_gradients(script):
            return None
        return ZeroRate(count, count / (count + others), backward_s)


def _stays(optimizer: Any, group: Mapping[str, Any]) -> bool:
    """Whether a step leaves these weights as they are: torch's optimizers scale an update by its rate.

    Rprop only begins with it. A rate that is a tensor may be on a device, which would have to be waited for.
    """
    is_torchs = type(optimizer).__module__.startswith("torch.optim")
    rate = group.get("lr")
    is_zero = isinstance(rate, int | float) and rate == 0
    return is_zero and is_torchs and not isinstance(optimizer, torch.optim.Rprop)


def _reads_gradients(script: Script) -> bool:
    """Whether a file of the training reads them, or one next to it, such as a probe that it imports."""
    sites = [site for role in _ROLES for site in script.calls.sites[role]]
    files = {frame.file for site in sites for frame in site.frames}
    folders = tuple(os.path.join(os.path.dirname(file), "") for file in files)
    paths = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    imported = {script.settings.place(os.path.realpath(path)) for path in paths if path and is_users(path)}
    files |= {file for file in imported if file.startswith(folders)}
    return any(next(places(LIMIT.reads, file), "") for file in files)


def sums(script: Script) -> dict[int, float]:
    """The sum of each real weight, those of sharded ones excepted, which other ranks would have to send."""
    plain = [weight for weight in script.parameters() if type(weight.data) is torch.Tensor]
    real = [weight for weight in plain if weight.is_floating_point()]
    return {id(weight): float(weight.detach().sum(dtype=torch.float64)) for weight in real}


def odd_parts(script: Script, before: Mapping[int, float], trained: Container[int]) -> tuple[float, float]:
    """The parts of the weights that have gradients without an optimizer, and that are frozen but changed.

    Those that were `trained` are not frozen, as a GAN's discriminator may be in a part of each step.
    """
    own = set(map(id, weights_of(script.groups())))
    if not own & before.keys():  # the script trains by something else, or by copies
        return 0.0, 0.0
    weights = script.parameters()
    total = sum(weight.numel() for weight in weights)
    without, changed = untrained(script, before), _changed(script, before)
    without_optimizer = sum(weight.numel() for weight in weights if id(weight) in without)
    frozen = [weight for weight in weights if not weight.requires_grad and id(weight) not in trained]
    updated = sum(weight.numel() for weight in frozen if weight.grad is not None and id(weight) in changed)
    return without_optimizer / total, updated / total


def untrained(script: Script, before: Mapping[int, float]) -> set[int]:
    """The weights with gradients, by `id`, that no optimizer has and nothing else changes either."""
    trained = _changed(script, before) | script.updates.held | set(map(id, weights_of(script.groups())))
    weights = [weight for weight in script.parameters() if weight.requires_grad and weight.grad is not None]
    return ({id(weight) for weight in weights} & before.keys()) - trained


def _changed(script: Script, before: Mapping[int, float]) -> set[int]:
    now = sums(script)
    return {weight for weight in now.keys() & before.keys() if before[weight] != now[weight]}
