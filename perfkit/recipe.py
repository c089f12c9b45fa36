"""How a workload is trained: one frozen value that holds every switch.

A switch is declared once, as a field of `Recipe`: type, default, allowed values, what it needs. Its label
and help are in `recipe.toml`. Widget, command-line setting and documentation are derived from these.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from perfkit import lookup
from perfkit.errors import InvalidValue, one_of

Value = bool | int | str
_WORDS = dict.fromkeys(("true", "on", "yes", "1"), True) | dict.fromkeys(("false", "off", "no", "0"), False)


@dataclass(frozen=True)
class Switch:
    """One thing that can be changed about a training run."""

    name: str
    default: Value
    label: str
    help: str
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 0
    needs: Literal["cuda", "workload"] | None = None  # a device, or a workload that offers the switch
    idle_when: tuple[str, Value] | None = None
    """Another switch, and its value that leaves this one without effect."""

    @property
    def kind(self) -> type:
        return type(self.default)

    @property
    def levels(self) -> tuple[Value, ...]:
        """Values to try: every choice, or the two lowest numbers."""
        if self.kind is bool:
            return (False, True)
        return self.choices or (self.low, self.low + 1)

    def parse(self, value: object) -> Value:
        text = str(value).lower()
        if self.kind is int:
            allowed = f"a whole number from {self.low} to {self.high}"
            with contextlib.suppress(ValueError):
                if self.low <= int(text) <= self.high:
                    return int(text)
        else:
            by_text = {choice: choice for choice in self.choices}
            words: Mapping[str, Value] = _WORDS if self.kind is bool else by_text
            allowed = "on, off" if self.kind is bool else ", ".join(words)
            if text in words:
                return words[text]
        raise InvalidValue(f"'{self.name}' was given '{value}'", f"Allowed: {allowed}")


def _switch(default: Value, choices: tuple[str, ...] = (), **more: Any) -> Any:
    return dataclasses.field(default=default, metadata={"default": default, "choices": choices, **more})


@dataclass(frozen=True)
class Recipe:
    """Every switch of a training run. The defaults are the baseline: a plain loop with torch's defaults."""

    batch_size: int = _switch(32, low=1, high=65536)
    workers: int = _switch(0, high=256)
    prefetch_factor: int = _switch(2, low=1, high=64, idle_when=("workers", 0))
    scaled_decode: bool = _switch(False, needs="workload")
    pin_memory: bool = _switch(False, needs="cuda")
    non_blocking: bool = _switch(False, needs="cuda")
    device_prefetch: bool = _switch(False, needs="cuda", idle_when=("pin_memory", False))
    uint8_copy: bool = _switch(False, needs="workload")
    device_resize: bool = _switch(False, needs="workload")
    zero_grad_set_to_none: bool = _switch(True)
    channels_last: bool = _switch(False)
    amp: str = _switch("off", ("off", "bf16", "fp16"))
    fp32_precision: str = _switch("default", ("default", "tf32", "ieee"))
    cudnn_benchmark: bool = _switch(False, needs="cuda")
    optimizer_impl: str = _switch("default", ("default", "loop", "foreach", "fused"))
    compile: bool = _switch(False)
    compile_mode: str = _switch(
        "default", ("default", "reduce-overhead", "max-autotune"), idle_when=("compile", False)
    )
    cpu_threads: int = _switch(0, high=1024)
    accumulation: int = _switch(1, low=1, high=1024)
    wait_policy: str = _switch("default", ("default", "passive"))
    allocator: str = _switch("default", ("default", "keep"))

    def __post_init__(self) -> None:
        """Checks every value, however the recipe was made."""
        for name, switch in switches().items():
            object.__setattr__(self, name, switch.parse(getattr(self, name)))

    def replace(self, /, **changes: Any) -> "Recipe":
        """A copy with some switches changed; raises on an unknown switch or a value that is not allowed."""
        for name in changes:
            _switch_named(name)
        return dataclasses.replace(self, **changes)

    def diff(self, other: "Recipe") -> dict[str, tuple[Value, Value]]:
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in switches()}
        return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}

    def environment(self) -> dict[str, str]:
        """Environment variables to set before the training process starts; the baseline has none."""
        variables = {"OMP_WAIT_POLICY": "PASSIVE"} if self.wait_policy == "passive" else {}
        if self.allocator == "keep":
            variables |= {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"}
        return variables

    def to_dict(self) -> dict[str, Value]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Recipe":
        """The recipe from plain data; switches that are not in it keep their defaults."""
        return cls().replace(**data)

    def describe(self, baseline: "Recipe | None" = None) -> str:
        """The switches that differ from a baseline (by default, from torch's defaults), in one line."""
        changed = self.diff(baseline or Recipe())
        return ", ".join(f"{name}={shown(value)}" for name, (value, _) in changed.items()) or "baseline"


def shown(value: object) -> str:
    """A value as `--set` takes it: `on` and `off` instead of True and False."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


@cache
def switches() -> dict[str, Switch]:
    """Every switch by name, in the order of declaration."""
    texts = lookup.toml("perfkit", "recipe")
    return {f.name: Switch(f.name, **texts[f.name], **f.metadata) for f in dataclasses.fields(Recipe)}


def _switch_named(name: str) -> Switch:
    if name not in switches():
        raise one_of(name, list(switches()), "switch")
    return switches()[name]


def allowed(values: Mapping[str, Any]) -> dict[str, Value]:
    """The values that their switches allow, parsed. Names that are not switches are left out, too."""
    parsed = {}
    for name, value in values.items():
        with contextlib.suppress(InvalidValue, KeyError):
            parsed[name] = switches()[name].parse(value)
    return parsed


def parse_settings(settings: Iterable[str] | None) -> dict[str, Value]:
    """`["workers=4", "amp=bf16"]` → typed values."""
    values: dict[str, Value] = {}
    for name, text in pairs(settings, "setting", "switch=value, such as workers=4"):
        values[name] = _switch_named(name).parse(text)
    return values


def pairs(texts: Iterable[str] | None, what: str, form: str) -> Iterator[tuple[str, str]]:
    """Splits `name=value` texts. `what` they are and their `form` are used in the error message."""
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InvalidValue(f"cannot read the {what} '{text}'", f"Write {form}")
        yield name.strip(), value.strip()
