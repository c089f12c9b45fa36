"""What people touch in a notebook. Holds no measuring code; everything else works without this package."""

from perfkit.notebook.functions import (
    SyncReport,
    TraceView,
    attribute,
    doctor,
    find_syncs,
    kernels,
    machine,
    memory,
    pipeline,
    profile,
    recording,
    source,
    torchrun,
    training_loop,
    tune,
)  # fmt: skip
from perfkit.notebook.ladder import LadderPanel, RecipePanel
from perfkit.notebook.shown import Shown
from perfkit.notebook.stage import StagePanel
from perfkit.notebook.where import use
from perfkit.notebook.workbench import Workbench
from perfkit.puzzles.panel import Puzzle, capstone, puzzle, puzzles
from perfkit.scripts.panel import ScriptPanel, script_panel

__all__ = [
    "LadderPanel", "Puzzle", "RecipePanel", "ScriptPanel", "Shown", "StagePanel", "SyncReport", "TraceView",
    "Workbench", "attribute", "capstone", "doctor", "find_syncs",
    "kernels", "machine", "memory", "pipeline", "profile", "puzzle", "puzzles",
    "recording", "script_panel", "source", "torchrun", "training_loop",
    "tune", "use",
]  # fmt: skip
