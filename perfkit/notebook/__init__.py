"""What people touch in a notebook. Holds no measuring code; everything else works without this package."""

from perfkit.notebook.panel import LadderPanel, doctor, machine
from perfkit.notebook.reading import Reading, find_syncs, profile, source
from perfkit.notebook.stage import StagePanel
from perfkit.notebook.whatif_panel import WhatIf
from perfkit.notebook.workbench import Workbench
from perfkit.notebook.worth import Worth, attribute

__all__ = [
    "LadderPanel", "Reading", "StagePanel", "WhatIf", "Workbench", "Worth",
    "attribute", "doctor", "find_syncs", "machine", "profile", "source",
]  # fmt: skip
