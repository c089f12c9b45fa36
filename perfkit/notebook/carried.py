"""The recipe that a reader carries to the end of the ladder."""

from collections import Counter

from perfkit.ladder.catalogue import LADDER, OPTIMIZATIONS
from perfkit.notebook.ladder import LadderPanel
from perfkit.recipe import Value
from perfkit.results.store import Entry, RunStore

FIRST: dict[str, Value] = {"workers": 1, "wait_policy": "passive"}
"""For a reader who has measured no rung: the first change of the course."""


def kept() -> dict[str, Value]:
    """The switches of the rungs that you kept in their panels, or that were faster if you decided nothing.

    Of each rung the newest result counts, on the session's device, workload and preset.
    """
    plan = LadderPanel().plan
    where = plan.preset.name, plan.device
    rows = [row for row in RunStore().history(workload=plan.workload) if (row.preset, row.device) == where]
    rungs = Counter(row.session for row in rows if row.stage in LADDER[1:])
    newest = {row.stage: row for row in reversed(rows) if rungs[row.session] == 1}  # no whole ladder
    settings: dict[str, Value] = {}
    for name in LADDER[1:]:
        if name in newest and _is_kept(newest[name]):
            settings |= {switch: newest[name].recipe[switch] for switch in OPTIMIZATIONS[name].settings}
    return settings or FIRST


def _is_kept(row: Entry) -> bool:
    if row.note in ("kept", "dropped"):
        return row.note == "kept"
    ratio = row.against_baseline
    return ratio is not None and (ratio.is_faster or (ratio.verdict == "too few rounds" and ratio.low > 1))
