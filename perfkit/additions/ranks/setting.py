"""What a rank does for whoever watches it: it comes to a socket, and sets switches, which it proves."""

import inspect
import os
import socket
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from perfkit.additions.ranks.messages import Hello
from perfkit.additions.ranks.switches import FLAGS, GRADIENTS, NO_SYNC, OF_DDP, THREADS
from perfkit.additions.scripts import hooks
from perfkit.additions.scripts.script import Script, ScriptStep
from perfkit.results.schema import Mechanism
from perfkit.worker import checks

_HOOK = "_compress_hook"  # of `default_hooks`, after the type
_REBUILT = 4  # steps after which the buckets of a model are those that it keeps


def join(script: Script, asked: Sequence[Any]) -> tuple[Hello, Connection] | None:
    """Joins as the rank that this process is; without a group of ranks, it is the only one.

    None on a machine where nobody listens: the rank trains on without being seen, and the parts of its script
    that would be `asked` note nothing.
    """
    rank, world = 0, 1
    sock = socket.socket(socket.AF_UNIX)
    if dist.is_initialized():
        rank, world = dist.get_rank(), dist.get_world_size()
    try:
        sock.connect(script.settings["address"])
    except OSError as problem:
        script.parts[:] = [part for part in script.parts if part not in asked]
        print(f"perfkit cannot see rank {rank}, because nobody listens here: {problem}", file=sys.stderr)
        return None
    line = Connection(sock.detach())
    local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("SLURM_NTASKS_PER_NODE") or world
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    hello = Hello(rank=rank, world=world, local=int(local), pid=os.getpid(), restart=restart)
    line.send_bytes(msgspec.json.encode(hello))
    return hello, line


class Setting:
    """Sets the switches that are wanted on this rank, and proves them; a part of the script."""

    def __init__(self, script: Script, wanted: dict[str, Any]) -> None:
        self._script = script
        self._wanted = wanted
        self._ddps: list[Any] = []
        self._buckets = 0
        self._usual = self._passes = 0  # of a step, and of the one under way
        self._unsent = 0  # passes of all steps that sent nothing
        self._is_sent = self._were_sent = True
        self._refused = ""  # why torch does not take a hook
        if wanted:
            hooks.around(DistributedDataParallel, "__init__", self._make)
        if wanted.get(NO_SYNC):
            hooks.around(DistributedDataParallel, "forward", self._forward)

    def _make(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(plain).bind(model, *args, **kwargs).arguments
        given |= {OF_DDP[name]: value for name, value in self._wanted.items() if name in OF_DDP}
        del given["self"]
        plain(model, **given)
        self._ddps.append(model)
        if (value := self._wanted.get(GRADIENTS, "default")) != "default":
            try:
                model.register_comm_hook(None, getattr(default_hooks, value + _HOOK))
            except (TypeError, RuntimeError) as problem:  # by torch's own rules, or there is one already
                self._refused = str(problem).splitlines()[0]

    def _forward(self, plain: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Gradients are sent in the last pass of a step, which has as many as the step before."""
        if torch.is_grad_enabled() and model.training:
            self._passes += 1
            self._is_sent = self._passes >= self._usual
            if not self._is_sent:
                self._unsent += 1
            model.require_backward_grad_sync = self._is_sent
        return plain(model, *args, **kwargs)

    def on_steps(self, steps: list[ScriptStep]) -> None:
        self._were_sent &= self._is_sent
        self._usual = self._passes // len(steps)
        self._passes = 0
        if self._ddps and self._script.steps.count <= _REBUILT:
            # In the main thread: another one would wait there for the backward pass under way.
            self._buckets = len(buckets_of(self._ddps[0]._get_ddp_logging_data()))

    def proofs(self) -> list[Mechanism]:
        """Whether each switch is in effect on this rank."""
        read = self._read()
        own = [
            Mechanism(name, read[name][0] == value, read[name][1])
            for name, value in self._wanted.items()
            if name in read
        ]
        return checks.verify(self._script, self._script.toggles) + own

    def _read(self) -> dict[str, tuple[Any, str]]:
        """The switches of ranks as they are, and how that is known."""
        threads = torch.get_num_threads()
        read: dict[str, tuple[Any, str]] = {THREADS: (threads, f"torch computes with {threads} threads")}
        if not self._ddps:
            names = [*OF_DDP, NO_SYNC, GRADIENTS]
            return read | dict.fromkeys(names, (None, "no DistributedDataParallel was made"))
        model = self._ddps[0]
        for name in FLAGS:
            value = bool(getattr(model, name))
            read[name] = value, f"the model's {name} is {value}"
        size = int(model.bucket_bytes_cap) >> 20
        read["bucket_mb"] = size, f"buckets of at most {size} MB: there are {self._buckets}"
        read[NO_SYNC] = self._read_sends()
        read[GRADIENTS] = self._read_gradients(model)
        return read

    def _read_sends(self) -> tuple[bool, str]:
        text = f"{self._unsent} of {self._script.backwards} backward passes sent nothing"
        if not self._were_sent:
            text += ", and a step was taken before its gradients were sent"
        return bool(self._unsent) and self._were_sent, text

    def _read_gradients(self, model: Any) -> tuple[str, str]:
        if self._refused:
            return "default", f"torch refuses it: {self._refused}"
        if not model._comm_hooks:
            return "default", "the model has no hook for its gradients"
        name = model._comm_hooks[0][0].__name__
        return name.removesuffix(_HOOK), f"the model's hook for its gradients is {name}"


def buckets_of(told: dict[str, Any]) -> list[int]:
    """Bytes of each bucket, by what torch tells of a model."""
    sizes = str(told.get("rebuilt_bucket_sizes") or told.get("bucket_sizes", ""))
    return [int(size) for size in sizes.split(",") if size.strip()]
