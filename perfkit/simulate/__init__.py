"""GPUs that are not there: a training step is planned by torch itself, its times are predicted by a model.

Nothing here is measured, and everything that comes out says *simulated*.
"""

SOURCES = {"sim": "perfkit.simulate.source:Simulated"}
