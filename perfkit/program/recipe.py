"""How a workload is trained: one frozen value holding every switch.

A switch is declared once, as a field of `Recipe`: type, default, allowed values, label, what it needs. The
widget, the command-line flag, the ablation level and the documentation row derive from that declaration.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast, get_type_hints

from perfkit.errors import InvalidValue, one_of
from perfkit.results import former

Value = bool | int | str


@dataclass(frozen=True)
class Switch:
    """One thing that can be changed about a training run."""

    name: str
    kind: type
    default: Value
    label: str
    help: str
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 0
    levels: tuple[Value, ...] = ()
    """Values worth trying, in the order of an ablation."""
    needs: str = ""
    """`cuda`, `accelerator` (anything but the CPU), `workload` (the workload must offer it), or nothing."""
    idle_when: tuple[str, Value] | None = None
    """Another switch and the value of it with which this one does nothing."""

    def parse(self, given: object) -> Value:
        """The value of this switch for a text or a typed value.

        Raises:
            InvalidValue: the value is not of the switch's type or not allowed.
        """
        if self.kind is bool:
            return self._parse_bool(given)
        if self.kind is int:
            return self._parse_int(given)
        if str(given) not in self.choices:
            raise one_of(given, list(self.choices), f"value for '{self.name}'")
        return str(given)

    def _parse_bool(self, given: object) -> bool:
        words = {"true": True, "on": True, "yes": True, "1": True}
        words |= {"false": False, "off": False, "no": False, "0": False}
        if str(given).lower() not in words:
            raise InvalidValue(f"'{self.name}' was given '{given}'", "Allowed: true, false (on/off, yes/no)")
        return words[str(given).lower()]

    def _parse_int(self, given: object) -> int:
        try:
            if isinstance(given, bool):
                raise ValueError
            number = int(str(given))
        except ValueError:
            raise self._out_of_range(given) from None
        if not self.low <= number <= self.high:
            raise self._out_of_range(given)
        return number

    def _out_of_range(self, given: object) -> InvalidValue:
        return InvalidValue(
            f"'{self.name}' was given '{given}'", f"Allowed: a whole number from {self.low} to {self.high}"
        )


def _switch(default: Value, label: str, help: str, **more: Any) -> Any:
    return field(default=default, metadata={"label": label, "help": help, **more})


@dataclass(frozen=True)
class Recipe:
    """Every switch of a training run. The defaults are the baseline: a plain loop, nothing optimised."""

    batch_size: int = _switch(32, "Batch size", "samples a step", low=1, high=65536, levels=(32, 64, 128))
    workers: int = _switch(
        0, "Loader workers", "processes that fetch data; 0 = in the loop", high=256, levels=(0, 1, 2, 4, 8)
    )
    persistent_workers: bool = _switch(
        False, "Keep workers", "keep the workers alive between epochs", idle_when=("workers", 0)
    )
    prefetch_factor: int = _switch(
        2,
        "Prefetch",
        "batches each worker keeps ready",
        low=1,
        high=64,
        levels=(2, 4),
        idle_when=("workers", 0),
    )
    batched_fetch: bool = _switch(
        False, "Batched fetch", "fetch a whole batch at once, without PIL (`__getitems__`)", needs="workload"
    )
    pin_memory: bool = _switch(False, "Pin memory", "page-locked host batches", needs="cuda")
    non_blocking: bool = _switch(False, "Non-blocking copy", "copy while the host goes on", needs="cuda")
    device_prefetch: bool = _switch(
        False, "Device prefetch", "copy the next batch on a side stream", needs="cuda"
    )
    uint8_copy: bool = _switch(
        False, "uint8 copy", "ship uint8, cast and normalise on the device", needs="workload"
    )
    device_resize: bool = _switch(
        False, "Resize on device", "ship the small images, resize there", needs="workload"
    )
    device_dataset: bool = _switch(
        False, "Resident data", "whole data set on the device, no loader", needs="workload"
    )
    zero_grad_set_to_none: bool = _switch(
        False, "zero_grad to None", "drop gradients instead of zeroing them"
    )
    channels_last: bool = _switch(False, "channels_last", "NHWC memory layout")
    amp: str = _switch(
        "off", "AMP", "autocast to 16 bits", choices=("off", "bf16", "fp16"), levels=("off", "bf16", "fp16")
    )
    tf32: bool = _switch(False, "TF32", "TF32 for float32 matmul and convolution", needs="cuda")
    cudnn_benchmark: bool = _switch(
        False, "cuDNN search", "time cuDNN's algorithms, keep the best", needs="cuda"
    )
    optimizer_impl: str = _switch(
        "default",
        "Optimizer",
        "how the optimizer walks the parameters; default = torch's own choice",
        choices=("default", "loop", "foreach", "fused"),
        levels=("loop", "foreach", "fused"),
    )
    compile: bool = _switch(False, "torch.compile", "compile the model")
    compile_mode: str = _switch(
        "default",
        "Compile mode",
        "what torch.compile optimises for",
        choices=("default", "reduce-overhead", "max-autotune"),
        levels=("default", "reduce-overhead", "max-autotune"),
        idle_when=("compile", False),
    )
    cpu_threads: int = _switch(0, "CPU threads", "compute threads; 0 = one per usable core", high=1024)
    accumulation: int = _switch(
        1, "Accumulation", "batches accumulated before one optimizer step", low=1, high=1024, levels=(1, 2, 4)
    )
    activation_checkpointing: bool = _switch(
        False, "Checkpointing", "keep only the input of each block, compute its activations again in backward"
    )
    embedding_device: str = _switch(
        "device", "Placement", "where embeddings live: with the rest, or in host memory",
        choices=("device", "cpu"), levels=("device", "cpu"), needs="workload",
    )  # fmt: skip
    log_every: int = _switch(
        0, "Read the loss", "every so many steps (a wait for the device); 0 = after the last", high=1_000_000,
        levels=(0, 1, 30),
    )  # fmt: skip
    nvtx_ranges: bool = _switch(False, "Named ranges", "NVTX and profiler ranges around the parts of a step")
    ranks: int = _switch(1, "Ranks", "processes that train together (DDP)", low=1, high=1024, levels=(1, 2))
    no_sync: bool = _switch(
        False, "no_sync", "average gradients once a step, not after each accumulated batch",
        idle_when=("accumulation", 1),
    )  # fmt: skip
    bucket_cap_mb: int = _switch(
        25, "Bucket size", "MiB of gradients averaged at once", low=1, high=4096, levels=(1, 25, 100),
        idle_when=("ranks", 1),
    )  # fmt: skip
    gradient_as_bucket_view: bool = _switch(
        False, "Bucket views", "gradients live in the buckets: one copy less", idle_when=("ranks", 1)
    )
    static_graph: bool = _switch(
        False, "Static graph", "every step uses the same parameters", idle_when=("ranks", 1)
    )
    gradient_compression: str = _switch(
        "off", "Compression", "gradients cross between ranks in 16 bits", choices=("off", "bf16", "fp16"),
        levels=("off", "bf16", "fp16"), idle_when=("ranks", 1),
    )  # fmt: skip
    infiniband: bool = _switch(
        True, "RDMA", "NCCL may use InfiniBand or RoCE between machines; off: TCP", needs="cuda",
        idle_when=("ranks", 1),
    )  # fmt: skip

    def __post_init__(self) -> None:
        """Every value is checked here, whatever way the recipe was made.

        Raises:
            InvalidValue: a value is not allowed.
        """
        for name, switch in switches().items():
            object.__setattr__(self, name, switch.parse(getattr(self, name)))

    def replace(self, /, **changes: Any) -> Recipe:
        """This recipe with some switches changed.

        Raises:
            InvalidValue: an unknown switch or a value that is not allowed.
        """
        for name in changes:
            if name not in switches():
                raise one_of(name, list(switches()), "switch")
        return dataclasses.replace(self, **changes)

    def diff(self, other: Recipe) -> dict[str, tuple[Value, Value]]:
        """The switches that differ: name → (here, there)."""
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in switches()}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def to_dict(self) -> dict[str, Value]:
        """Plain data, in the order of declaration."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Recipe:
        """The recipe for plain data; switches that are not named keep their defaults.

        Raises:
            InvalidValue: an unknown switch or a value that is not allowed.
        """
        return cls().replace(**former.recipe(data))

    def digest(self) -> str:
        """A short name of this value: equal recipes have equal digests, in every process."""
        text = json.dumps(self.to_dict(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def describe(self) -> str:
        """The switches that differ from the baseline, for one line of text."""
        changed = self.diff(Recipe())
        return ", ".join(f"{name}={shown(pair[0])}" for name, pair in changed.items()) or "baseline"


def shown(value: Value) -> str:
    """A value as one types it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _declare() -> dict[str, Switch]:
    kinds = get_type_hints(Recipe)
    return {
        f.name: Switch(
            name=f.name,
            kind=kinds[f.name],
            default=cast(Value, f.default),
            **_with_levels(kinds[f.name], f.metadata),
        )
        for f in dataclasses.fields(Recipe)
    }


def _with_levels(kind: type, metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {"levels": (False, True)} | dict(metadata) if kind is bool else dict(metadata)


_SWITCHES: dict[str, Switch] = {}


def switches() -> dict[str, Switch]:
    """Every switch by name, in the order of declaration."""
    if not _SWITCHES:
        _SWITCHES.update(_declare())
    return _SWITCHES


def parse_settings(settings: Iterable[str]) -> dict[str, Value]:
    """`["workers=4", "amp=bf16"]` → typed values.

    Raises:
        InvalidValue: no `=`, an unknown switch, or a value that is not allowed.
    """
    found: dict[str, Value] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InvalidValue(
                f"cannot read the setting '{setting}'", "Write switch=value, such as workers=4"
            )
        ((name, given),) = former.recipe({name.strip(): text.strip()}).items()
        if name not in switches():
            raise one_of(name, list(switches()), "switch")
        found[name] = switches()[name].parse(given)
    return found
