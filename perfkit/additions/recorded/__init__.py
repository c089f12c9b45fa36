"""Recordings instead of measurements: shows again what a named machine has measured."""

SOURCES = {"recorded": "perfkit.additions.recorded.source:RecordedSource"}
NOTEBOOK = {"recording": "perfkit.additions.recorded.panel:recording"}
