"""What people touch in a notebook. Holds no measuring code; everything else works without this package."""

from perfkit.notebook.panel import LadderPanel, StagePanel, doctor, machine

__all__ = ["LadderPanel", "StagePanel", "doctor", "machine"]
