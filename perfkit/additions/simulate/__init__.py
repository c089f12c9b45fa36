"""GPUs that are not there: torch itself plans a training step, and a model predicts its times.

Nothing here is measured, and everything that comes out says *simulated*.
"""

SOURCES = {"sim": "perfkit.additions.simulate.source:SimulatedSource"}
