"""Runs and recordings that older versions of perfkit wrote, as this version writes them."""

from typing import Any, Literal

SCHEMA: Literal[2] = 2
"""Version of what is stored."""


def upgraded(data: dict[str, Any]) -> dict[str, Any]:
    """The plain data of a run, or of a recording with its runs, in the present schema; not checked."""
    if data.get("schema") == 1:
        data = _to_2(data)
    runs = data.get("runs")
    if isinstance(runs, list):
        data = {**data, "runs": [upgraded(run) if isinstance(run, dict) else run for run in runs]}
    return data


def _to_2(data: dict[str, Any]) -> dict[str, Any]:
    """Schema 1 had what became of a stage, and the command of a script, as prose among the facts."""
    data = {**data, "schema": 2}
    facts = data.get("facts")
    if not isinstance(facts, dict):
        return data
    facts = dict(facts)
    stage = facts.pop("rung", None)
    if isinstance(stage, str):
        why = stage.removeprefix("kept").removeprefix("dropped").removeprefix(": ")
        data["decision"] = {"kept": stage.startswith("kept"), "by": "climb", "why": why}
    if "command" in facts:
        data["script"] = facts.pop("command")
    return {**data, "facts": facts}
