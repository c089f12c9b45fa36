"""What a script does in its steps, noted in its own process: the facts for `behaviour.differences`."""

import pkgutil
import random
from collections.abc import Sequence
from typing import Any

import torch
from msgspec import structs

from perfkit.additions.referee.behaviour import LIMIT, MOVES_AFTER, PER_STEP, WITNESS, Behaviour, is_kept
from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.messages import COMPILING, START
from perfkit.additions.scripts.script import Callback, Script, ScriptStep
from perfkit.additions.shared.tensors import first_tensor, graph, weights_of
from perfkit.worker.checks import dtype_name


class Witness(Callback):
    """Notes the facts of each step. Checksums stay on the device until requested, so nothing waits."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._functions = {name: pkgutil.resolve_name(name) for name in hooks.TABLES["timing"]["names"]}
        self._steps = list[dict[str, Any]]()  # facts of kept steps; a thread may read them at any time
        self._outside: dict[str, list[int]] = {"evaluations": [], "checkpoints": []}
        self._formats: set[torch.dtype] = set()
        self._weight = torch.zeros(1)
        self._backwards = 0
        self._next_look = 0  # at a graph: the number of its step
        self._number = 0  # of the step under way
        self._left_out = 0  # steps that are not kept
        self._samples_left_out = 0  # in these steps
        self._random = random.Random(script.settings.seed)
        self._weights_before: dict[str, torch.Tensor] = {}
        self._moved: dict[str, torch.Tensor] = {}
        self._begin_step()
        hooks.wrap("torch.compile", self._compile)

    def _begin_step(self) -> None:
        self._values = 0
        self._batch: list[torch.Tensor] = []
        self._leaves: dict[int, int] = {}  # sizes of the weights on which losses depend, by their ids

    def _compile(self, plain: Any, *args: Any, **kwargs: Any) -> Any:
        """Makes compiled parts draw the random numbers of eager ones, so that dropout is the same."""
        pkgutil.resolve_name("torch._inductor.config").fallback_random = True
        return plain(*args, **kwargs)

    def on_input(self, given: Any) -> None:
        if (tensor := first_tensor(given)) is not None:
            self._values += tensor.numel()
            # The sums of a few tokens are often equal.
            self._batch += [part.detach().sum() for part in (tensor, tensor[:1])]

    def on_graph(self, roots: Any, is_kept: bool) -> None:
        """Notes the weights and number formats that a loss was computed from; a compiled part is one node."""
        if self._script.is_timed or self._number < self._next_look:
            return
        for node in graph(roots):
            self._formats |= {result.dtype for result in getattr(node, "_input_metadata", ())}
            if (leaf := getattr(node, "variable", None)) is not None:
                self._leaves[id(leaf)] = leaf.numel()

    def on_steps(self, steps: Sequence[ScriptStep]) -> None:
        """Notes a step; the first two end together, and count as one."""
        script = self._script
        count = len(steps)
        self._compare_weights()
        reached = None
        if self._leaves:
            updated = set(map(id, weights_of(script.groups()))) or self._leaves.keys()
            reached = sum(size for leaf, size in self._leaves.items() if leaf in updated)
            distance = 1 if self._number < LIMIT.looked_at else self._random.randint(1, LIMIT.apart)
            self._next_look = self._number + distance
        self._note(set().union(*(step.marks for step in steps)))
        usual = script.samples_per_step  # batches of an evaluation may come from the same loader
        loaded = sum(min(s.samples, usual) if "evaluation" in s.marks else s.samples for s in steps)
        facts: dict[str, Any] = {
            "loaded": loaded // count,
            "trained": sum(step.forward_samples for step in steps) // count,
            "values": self._values // count,
            "backwards": (script.updates.backwards - self._backwards) // count,
            "batches": self._batch,
            "weight": self._weight.detach().reshape(-1)[: LIMIT.watched].view(torch.uint8).sum(),
            "reached": reached,
        }
        if self._backwards < script.updates.backwards <= len(script.updates.losses):
            facts["losses"] = sum(script.updates.losses[self._backwards : script.updates.backwards]) / count
        if is_kept(self._number):
            self._steps.append(facts)
        else:
            self._left_out += 1
            self._samples_left_out += facts["trained"] or facts["loaded"]
        self._number += 1
        self._backwards = script.updates.backwards
        self._begin_step()

    def _compare_weights(self) -> None:
        """Notes how far each weight moves from the first step to a later one."""
        if self._number == 0:
            plain = [p for p in self._script.parameters() if type(p.data) is torch.Tensor and p.dim() > 1]
            if weights := [p for p in plain if p.requires_grad]:
                self._weight = weights[(len(weights) - 1) // 2]  # the head alone would be cheap to update
            self._weights_before = self._weights()
        elif self._number == MOVES_AFTER:
            now = self._weights()
            before = self._weights_before.items()
            self._moved = {name: (now[name] - old).norm() for name, old in before if name in now}
            self._weights_before = {}

    def on_end(self) -> None:
        """Notes an evaluation or a checkpoint after the last step."""
        self._note(self._script.steps.now.marks)

    def _note(self, marks: set[str]) -> None:
        for mark in marks & {"evaluation", "checkpoint"}:
            self._outside[f"{mark}s"].append(self._number)

    def _weights(self) -> dict[str, torch.Tensor]:
        weights = dict[str, torch.Tensor]()
        stride = 1 + sum(p.numel() for p in self._script.parameters()) // LIMIT.most_kept
        for name, weight in self._script.model.named_parameters():
            if weight.requires_grad and type(weight.data) is torch.Tensor:
                plain = name.replace("_orig_mod.", "").replace("module.", "")
                weights[plain] = weight.detach().reshape(-1)[::stride].float().clone()
        return weights

    def behaviour(self) -> Behaviour:
        steps = self._steps.copy()
        facts: dict[str, Any] = {name: [step[name] for step in steps] for name in PER_STEP}
        facts["weight"] = list(map(float, facts["weight"]))
        facts["losses"] = [float(step["losses"]) for step in steps if "losses" in step]
        facts |= {name: numbers.copy() for name, numbers in self._outside.items()}
        facts["batches"] = [float(hash(tuple(map(float, sums)))) for sums in facts["batches"]]
        floating = [dtype for dtype in self._formats.copy() if dtype.is_floating_point]
        autocast = self._script.models.autocast if self._weight.itemsize > 2 else None  # weights keep 32 bits
        return Behaviour(
            **facts,
            left_out=self._left_out,
            samples_left_out=self._samples_left_out,
            parameters=sum(p.numel() for p in self._script.parameters()),
            precision=dtype_name(min(floating, key=lambda dtype: dtype.itemsize)) if floating else None,
            autocast=dtype_name(autocast) if autocast else None,
            optimizers=[type(optimizer).__name__ for optimizer in self._script.updates.optimizers],
            moved={name: float(norm) for name, norm in self._moved.items()},
            replaced=[name for name, plain in self._functions.items() if pkgutil.resolve_name(name) != plain],
        )


def behaviour(questions: Any) -> Behaviour:
    """The behaviour of a watched script until now, with the parts of its run."""
    witness: Witness = questions.observers[WITNESS]
    account = questions.account()
    run = {part: seconds for part, seconds in account.parts.items() if part not in (START, COMPILING)}
    parts = {"run": run, "run_steps": account.steps, "marked": account.marked, "epochs": len(account.epochs)}
    return structs.replace(witness.behaviour(), **parts)
