"""The switches of several ranks; each is set from outside, on every rank."""

from collections.abc import Mapping, Sequence

from perfkit.recipe import Switch, Value, pairs, parse_settings, shown

FLAGS = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers")
OF_DDP = {**{name: name for name in FLAGS}, "bucket_mb": "bucket_cap_mb"}  # arguments, by switch
THREADS, NO_SYNC, GRADIENTS = "omp_threads", "no_sync", "gradients"
_OWN = {name: Switch(name, False, name, "") for name in (*FLAGS, NO_SYNC)}
_OWN |= {name: Switch(name, 1, name, "", low=1, high=65536) for name in ("bucket_mb", THREADS)}
_OWN[GRADIENTS] = Switch(GRADIENTS, "default", GRADIENTS, "", choices=("default", "fp16", "bf16"))


def parse(settings: Sequence[str]) -> dict[str, Value]:
    """`["bucket_mb=100", "no_sync=on", "workers=2"]` → typed values; other names are switches of a script."""
    named = list(pairs(settings, "setting", "switch=value, such as find_unused_parameters=off"))
    values = {name: _OWN[name].parse(text) for name, text in named if name in _OWN}
    return values | parse_settings([f"{name}={text}" for name, text in named if name not in _OWN])


def in_words(settings: Mapping[str, Value]) -> str:
    """`find_unused_parameters=off, bucket_mb=100`."""
    return ", ".join(f"{name}={shown(value)}" for name, value in settings.items())


def of_script(settings: Mapping[str, Value]) -> dict[str, Value]:
    """The switches that a script in a single process has, too."""
    return {name: value for name, value in settings.items() if name not in _OWN}
