"""What people touch in a notebook. Holds no measuring code; everything else works without this package."""

from perfkit.notebook.ladder import LadderPanel
from perfkit.notebook.panel import doctor, machine
from perfkit.notebook.reading import Reading, find_syncs, profile, source
from perfkit.notebook.recipes import Inside, RecipePanel, kernels, memory, nsys, torchrun
from perfkit.notebook.stage import StagePanel
from perfkit.notebook.whatif import WhatIf
from perfkit.notebook.workbench import Workbench
from perfkit.notebook.worth import Search, Worth, attribute, tune

__all__ = [
    "Inside", "LadderPanel", "Reading", "RecipePanel", "Search", "StagePanel", "WhatIf", "Workbench", "Worth",
    "attribute", "doctor", "find_syncs", "kernels", "machine", "memory", "nsys", "profile", "source",
    "torchrun", "tune",
]  # fmt: skip
