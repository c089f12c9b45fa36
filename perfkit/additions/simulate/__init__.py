"""Simulated GPUs: torch itself plans a training step, and a model predicts its times.

Nothing here is measured, and every result is marked *simulated*.
"""

SOURCES = {"sim": "perfkit.additions.simulate.source:SimulatedSource"}
