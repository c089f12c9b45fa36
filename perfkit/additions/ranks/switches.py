"""The switches that several ranks have: each is set from outside, on every rank."""

from collections.abc import Mapping, Sequence

from perfkit.errors import InvalidValue
from perfkit.recipe import Value, pairs, parse_settings

FLAGS = ("find_unused_parameters", "gradient_as_bucket_view", "static_graph", "broadcast_buffers")
OF_DDP = {**{name: name for name in FLAGS}, "bucket_mb": "bucket_cap_mb"}
"""Switches that are arguments of `DistributedDataParallel`."""
THREADS, NO_SYNC = "omp_threads", "no_sync"
_NUMBERS = {"bucket_mb", THREADS}
_NAMES = (*OF_DDP, NO_SYNC, THREADS)


def parse(settings: Sequence[str]) -> dict[str, Value]:
    """`["bucket_mb=100", "no_sync=on", "workers=2"]` → typed values; the others are a script's switches."""
    form = "switch=value, such as find_unused_parameters=off"
    values, others = dict[str, Value](), list[str]()
    for name, text in pairs(settings, "setting", form):
        if name in _NAMES:
            values[name] = _value(name, text)
        else:
            others.append(f"{name}={text}")
    return values | parse_settings(others)


def _value(name: str, text: str) -> Value:
    if name not in _NUMBERS:
        if text not in ("on", "off"):
            raise InvalidValue(f"{name} was given '{text}'", "Allowed: on, off")
        return text == "on"
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise InvalidValue(f"{name} was given '{text}'", "Write a whole number from 1 on")
    return number


def in_words(settings: Mapping[str, Value]) -> str:
    """`find_unused_parameters=off, bucket_mb=100`."""
    texts = []
    for name, value in settings.items():
        text = str(value)
        if isinstance(value, bool):
            text = "on" if value else "off"
        texts.append(f"{name}={text}")
    return ", ".join(texts)


def of_script(settings: Mapping[str, Value]) -> dict[str, Value]:
    """Those that a script in a single process has too."""
    return {name: value for name, value in settings.items() if name not in _NAMES}
