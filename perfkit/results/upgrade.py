"""Upgrades runs and recordings of older versions of perfkit to the current schema."""

import itertools
import math
from typing import Any


def upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """The plain data of a run, or of a recording with its runs, in the current schema; not checked."""
    data = {**data, "schema": 2}
    for name, change in (("runs", upgraded), ("pairings", _pairing)):
        if isinstance(data.get(name), list):
            data[name] = [change(entry) if isinstance(entry, dict) else entry for entry in data[name]]
    if isinstance(data.get("facts"), dict):
        data |= _typed(dict(data["facts"]))
    return data


def _typed(facts: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 stored the outcome of a stage, and the command of a script, as prose among the facts."""
    fields: dict[str, Any] = {"facts": facts}
    stage = facts.pop("rung", None)
    if isinstance(stage, str):
        why = stage.removeprefix("kept").removeprefix("dropped").removeprefix(": ")
        fields["decision"] = {"kept": stage.startswith("kept"), "by": "climb", "why": why}
    if "command" in facts:
        fields["script"] = facts.pop("command")
    return fields


def _pairing(data: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 stored each further pair of processes separately, and a 95% bound instead of a spread."""
    data = dict(data)
    further = data.pop("further_pairs", [])
    if further:
        parts = [{"disturbed": [], **part} for part in (data, *further)]
        for name in ("own_samples_per_s", "other_samples_per_s", "disturbed"):
            data[name] = list(itertools.chain.from_iterable(part[name] for part in parts))
        data["incarnations"] = [len(part["own_samples_per_s"]) for part in parts]
    if (bound := data.pop("noise", None)) is not None:
        # A bound was Student's 97.5% quantile for 4 degrees of freedom times the standard deviation.
        data.setdefault("spread", [math.log1p(bound) / 2.776, 4])
    return data
