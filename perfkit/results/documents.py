"""Runs as JSON: written for other programs, and read from files that are not trusted."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from perfkit.errors import StoreError
from perfkit.results.run import Run
from perfkit.results.schema import SCHEMA
from perfkit.results.upgrade import upgraded

T = TypeVar("T")

_OF_SESSION = {"schema", "session", "created", "workload", "options", "preset", "device", "seed", "machine"}
_NOT_SHOWN = _OF_SESSION | {"code", "stage", "samples_per_step", "pairings", "reference_samples_per_s"}
_DERIVED = (
    "samples_per_s", "disturbed", "step_s", "data_wait_s", "data_wait_share", "ceiling_samples_per_s",
    "pipeline_efficiency", "h2d_bytes_per_sample", "utilization",
)  # fmt: skip


def summary(run: Run) -> dict[str, Any]:
    """A stage as plain data for `--json`: derived numbers next to the raw ones that they come from."""
    ratios = {f"speedup_vs_{role}": run.speedup(role) for role in ("previous", "baseline")}
    fields = [name for name in Run.__struct_fields__ if name not in _NOT_SHOWN]
    values = {"name": run.stage, **{name: getattr(run, name) for name in (*fields, *_DERIVED)}, **ratios}
    plain: dict[str, Any] = msgspec.to_builtins(values)
    return plain


def document(runs: Sequence[Run]) -> dict[str, Any]:
    """A session as `--json` writes it and as a report shows it."""
    first = runs[0]
    return {
        "schema": SCHEMA,
        "session": first.session,
        "machine": first.machine,
        "workload": {"name": first.workload, "options": first.options},
        "preset": first.preset,
        "device": first.device,
        "simulated": first.simulated is not None,
        "seed": first.seed,
        "stages": [summary(run) for run in runs],
    }


class _Version(msgspec.Struct):
    schema: int = SCHEMA


def read(text: bytes, kind: type[T], what: object) -> T:
    """Reads a struct with runs from JSON, checking every field and executing nothing; else a `StoreError`."""
    name = kind.__name__.lower()
    try:
        version = msgspec.json.decode(text, type=_Version).schema
        if version < SCHEMA:
            return msgspec.convert(upgraded(msgspec.json.decode(text)), kind)
        if version == SCHEMA:
            return msgspec.json.decode(text, type=kind)
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        wrong = f"{what} is not a {name} of this version of perfkit: {problem}"
        raise StoreError(wrong, "Restore it, or measure again") from None
    versions = f"its schema is {version}, but this version knows only {SCHEMA}"
    raise StoreError(f"{what} is a {name} of a later version of perfkit: {versions}", "Update perfkit")
