"""What a script does in its steps, noted in its own process: the facts for `behaviour.differences`."""

import collections
import contextlib
import inspect
import math
import pkgutil
import random
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import torch

from perfkit.scripts.behaviour import Behaviour, Look
from perfkit.scripts.loaders import Loaders
from perfkit.scripts.models import Models
from perfkit.scripts.script import Script, Step
from perfkit.worker.failures import is_users

_LOOKED_AT, _MOST_APART = 4, 7
"""First steps whose graphs are looked at; then the most steps until the next one, a random number of them."""
_WATCHED = 4096
"""Elements of the last weights that are watched for changes."""
_RELIED_ON = (
    "time.perf_counter", "time.perf_counter_ns", "time.monotonic", "time.time", "time.sleep",
    "torch.cuda.synchronize", "torch.cuda.Event", "torch.cuda.Event.record",
    "torch.cuda.Event.elapsed_time", "torch.Tensor.backward", "torch.autograd.backward",
    "torch.nn.Module.__call__", "torch.optim.Optimizer.profile_hook_step",
    "torch.utils.data.DataLoader.__init__", "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
)  # fmt: skip
_SWITCHES = ("params", "foreach", "fused", "capturable", "differentiable")
"""Of a parameter group: what says how an optimizer computes, not what."""
_ASKS = re.compile(rb"\b(import|from)\s+perfkit|[\"']perfkit", re.IGNORECASE)


class Witness:
    """Notes what each step did. Checksums stay on the device until they are asked for: nothing waits.

    It is made once everything is patched, and before the script's own code follows.
    """

    def __init__(self, script: Script, loaders: Loaders, models: Models) -> None:
        self._script, self._loaders, self._models = script, loaders, models
        self._relied_on = {name: pkgutil.resolve_name(name) for name in (*_RELIED_ON, *_own_functions())}
        self._facts = collections.defaultdict[str, list[Any]](list)
        self._formats: set[torch.dtype] = set()
        self._settings: dict[str, str] = {}
        self._weight = torch.zeros(1)
        self._backwards = self._handed = self._epoch = 0
        self._random = random.Random(script.settings["seed"])
        self._look_at = 0
        self._begin_step()

    def _begin_step(self) -> None:
        self._is_looked_at = len(self._facts["loaded"]) == self._look_at
        self._values = self._graph_values = 0
        self._batch: list[torch.Tensor] = []
        self._state, self._draws = b"", False
        self._leaves: dict[int, int] = {}

    # ------------------------------------------------------------ in a step

    def on_forward(self) -> None:
        if self._is_looked_at:
            self._state = _random_state()

    def on_input(self, given: torch.Tensor | None) -> None:
        """After the first forward pass before each backward pass."""
        if self._is_looked_at:
            self._draws |= self._state != _random_state()
        if given is not None:
            self._values += given.numel()
            self._batch += [_sum(given), _sum(given[:1])]  # the sums of a few tokens are often equal

    def on_graph(self, roots: Any) -> None:
        """What a loss was computed from, and in which number formats; compiled parts are one node."""
        if not self._is_looked_at:
            return
        seen: set[Any] = {None}
        waiting = [root.grad_fn for root in (roots if isinstance(roots, list | tuple) else [roots])]
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            results = getattr(node, "_input_metadata", ())
            self._formats |= {result.dtype for result in results}
            self._graph_values += sum(math.prod(result.shape) for result in results)
            if (leaf := getattr(node, "variable", None)) is not None:
                self._leaves[id(leaf)] = leaf.numel()
            waiting += [before for before, _ in node.next_functions]

    # ------------------------------------------------------------ at its end

    def on_steps(self, steps: Sequence[Step]) -> None:
        """A step has ended; the first two end together, and count as one."""
        script, facts, number, count = self._script, self._facts, len(self._facts["loaded"]), len(steps)
        groups = [group for optimizer in script.optimizers for group in optimizer.param_groups]
        if not number:
            self._settings = _settings(groups)
            for weight in script.parameters():
                if weight.requires_grad and weight.dim() > 1 and type(weight.data) is torch.Tensor:
                    self._weight = weight
        if self._is_looked_at:
            updated = {id(p) for group in groups for p in group["params"]} or self._leaves.keys()
            reached = sum(size for leaf, size in self._leaves.items() if leaf in updated)
            values = self._graph_values / max(1, self._values)
            facts["looks"].append(Look(number, reached, values, self._draws))
            self._look_at += 1 if number < _LOOKED_AT else self._random.randint(1, _MOST_APART)
        for step in steps:
            for mark in step.marks & {"evaluation", "checkpoint"}:
                facts[f"{mark}s"].append(number)
        # Batches of an evaluation may come from the same loader.
        loaded = sum(each.forward_samples if "evaluation" in each.marks else each.samples for each in steps)
        handed = getattr(script.iterator, "_perfkit_handed", 0)
        self._epoch, self._handed = (self._epoch if handed > self._handed else 0) + loaded, handed
        losses = script.losses[self._backwards : script.backwards]
        backwards = script.backwards - self._backwards
        noted = {
            "loaded": loaded // count,
            "trained": sum(step.forward_samples for step in steps) // count,
            "values": self._values // count,
            "backwards": backwards // count,
            "epoch": self._epoch if handed else 0,
            "batches": self._batch,
            "weight": self._weight.detach().reshape(-1)[:_WATCHED].view(torch.uint8).sum(),
            "lr": max((float(group.get("lr", 0.0)) for group in groups), default=0.0),
            "evaluated": sum(step.evaluated for step in steps),
        }
        for name, value in noted.items():
            facts[name].append(value)
        if len(losses) == backwards:
            facts["losses"].append(sum(losses) / count)
        self._backwards = script.backwards
        self._begin_step()

    # ------------------------------------------------------------ when it is asked

    def behaviour(self) -> Behaviour:
        """Everything that was seen until now."""
        script, data = self._script, None
        with contextlib.suppress(AttributeError, TypeError, NotImplementedError):  # some have no length
            data = len(script.loader.batch_sampler.sampler)
        parameters = script.parameters()
        facts: dict[str, Any] = {
            name: [float(each) if isinstance(each, torch.Tensor) else each for each in values]
            for name, values in self._facts.items()
        }
        facts["batches"] = [float(hash(tuple(map(float, sums)))) for sums in facts["batches"]]
        return Behaviour(
            **facts,
            augments=self._loaders.random_data,
            data=data,
            parameters=sum(p.numel() for p in parameters),
            weights=_narrowest({p.dtype for p in parameters}),
            activations=_narrowest(self._formats),
            autocast=_narrowest({self._models.autocast()}),
            scaler=script.has_scaler,
            optimizer=self._settings,
            replaced=sorted(
                name
                for name, function in self._relied_on.items()
                if pkgutil.resolve_name(name) != function
                or (name.startswith("time.") and not isinstance(function, BuiltinFunctionType))
            ),
            asks=sorted({*_asking_files()}),
        )


def _settings(groups: Sequence[dict[str, Any]]) -> dict[str, str]:
    """What the parameter groups of all optimizers are set to."""
    names = dict.fromkeys(name for group in groups for name in group if name not in _SWITCHES)
    return {
        name: ", ".join(sorted({_text(group[name]) for group in groups if name in group})) for name in names
    }


def _own_functions() -> Iterator[str]:
    """The names of perfkit's own functions and methods in this process."""
    for name in [name for name in sys.modules if name.startswith("perfkit.")]:
        for key, one in vars(sys.modules[name]).items():
            if getattr(one, "__module__", "") == name:
                yield f"{name}:{key}"
            if inspect.isclass(one) and one.__module__ == name:
                yield from (f"{name}:{key}.{inner}" for inner in vars(one) if not inner.startswith("__"))


def _asking_files() -> Iterator[str]:
    """The script's own files whose code names perfkit."""
    for name, module in list(sys.modules.items()):
        file = Path(getattr(module, "__file__", None) or "")
        is_own = is_users(str(file)) and not name.startswith(("perfkit", "sitecustomize"))
        if is_own and file.is_file() and _ASKS.search(file.read_bytes()):
            yield file.name


def _random_state() -> bytes:
    on_gpu = torch.cuda.is_initialized()
    states = [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if on_gpu else [])]
    return b"".join(state.numpy().tobytes() for state in states)


def _sum(tensor: torch.Tensor) -> torch.Tensor:
    """A checksum. In the tensor's own format, as another one takes many times as long."""
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    is_short = real.is_floating_point() and real.element_size() < 4
    return real.detach().sum(dtype=torch.float32 if is_short else None)


def _text(value: Any) -> str:
    return f"{float(value):.6g}" if isinstance(value, torch.Tensor | float) else str(value)


def _narrowest(kinds: Iterable[torch.dtype | None]) -> str | None:
    floating = [kind for kind in kinds if kind is not None and kind.is_floating_point]
    return str(min(floating, key=lambda kind: kind.itemsize)).removeprefix("torch.") if floating else None
