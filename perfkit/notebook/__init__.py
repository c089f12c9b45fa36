"""What people touch in a notebook. Holds no measuring code; everything else works without this package."""

from perfkit.notebook.functions import (
    AttributionResult,
    Inspection,
    SyncReport,
    TraceView,
    TuningResult,
    attribute,
    doctor,
    find_syncs,
    kernels,
    machine,
    memory,
    minutes,
    nsys,
    profile,
    recording,
    simulation,
    source,
    torchrun,
    tune,
)  # fmt: skip
from perfkit.notebook.ladder import LadderPanel, RecipePanel
from perfkit.notebook.script import ScriptPanel, script_panel
from perfkit.notebook.shown import Shown
from perfkit.notebook.stage import StagePanel
from perfkit.notebook.whatif import WhatIf
from perfkit.notebook.where import use
from perfkit.notebook.workbench import Workbench

__all__ = [
    "AttributionResult", "Inspection", "LadderPanel", "RecipePanel", "ScriptPanel", "Shown", "StagePanel",
    "SyncReport", "TraceView", "TuningResult", "WhatIf", "Workbench", "attribute", "doctor", "find_syncs",
    "kernels", "machine", "memory", "minutes", "nsys", "profile", "recording", "script_panel", "simulation",
    "source", "torchrun", "tune", "use",
]  # fmt: skip
